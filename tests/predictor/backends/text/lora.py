"""LoRA adapters in peft's format with random weights, and models with such an adapter merged by hand: the judge."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, base: Path, seed: int = 0, targets: Sequence[str] = ALL, r: int = 4, alpha: float = 8.0,
    *, ranks: dict[str, int] | None = None, **config: Any,
) -> Path:  # fmt: skip
    """Write an adapter that changes what the model says. `ranks`: those of single modules, by their names."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(seed)
    tensors = {}
    for key, weight in load_file(base / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if not key.endswith(".weight") or not any(module.endswith(f".{target}") for target in targets):
            continue
        outputs, inputs = weight.shape if "gpt2" not in base.name else reversed(weight.shape)
        rank = next((n for name, n in (ranks or {}).items() if module.endswith(f".{name}")), r)
        for kind, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
            name = f"base_model.model.{_name(module)}.{kind}.weight"
            tensors[name] = torch.randn(shape) / math.sqrt(2 * shape[1])
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    plain = {"peft_type": "LORA", "r": r, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none"}
    plain |= {"rank_pattern": ranks or {}, "task_type": "CAUSAL_LM", "modules_to_save": None, "use_dora": False}
    (folder / "adapter_config.json").write_text(json.dumps({**plain, **config}))
    return folder


def merged(folder: Path, base: Path, adapter: Path) -> Path:
    """Write the base model with W + scale · B · A for each W that the adapter has weights for."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights, updates = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for key, weight in weights.items():
        name = f"base_model.model.{_name(key.removesuffix('.weight'))}"
        if (down := updates.pop(f"{name}.lora_A.weight", None)) is None:
            continue
        rank = len(down)
        alpha = next((a for n, a in config.get("alpha_pattern", {}).items() if name.endswith(n)), config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        update = scale * updates.pop(f"{name}.lora_B.weight").double() @ down.double()
        weights[key] = (weight.double() + (update.T if "gpt2" in base.name else update)).to(torch.float32).contiguous()
    assert not updates
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _name(key: str) -> str:
    """The module's name in the model; files of GPT-2 leave out the first part."""
    return key if key.startswith(("model.", "transformer.", "lm_head")) else f"transformer.{key}"
