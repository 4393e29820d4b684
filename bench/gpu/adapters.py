"""LoRA adapters of the text backend: tokens beside merged weights, and tokens a second beside the base model's.

    PYTHONPATH=platform:predictor:. python bench/gpu/adapters.py FOLDER > adapters.json

FOLDER is made, and must not exist; 4 GB. `--small --device cpu` tries it anywhere, without graphs. `tokens` has a small
model in float32: prompts to adapters and to the base in one batch, beside transformers' generate with merged weights,
W + scale · B · A, before and after more adapters are loaded and one is replaced, which moves tensors that CUDA graphs
read. `rates` has 1.2 B weights in bfloat16 and 8 adapters of rank 16 on all linear layers: batches of the base, of one
adapter, and of all adapters and the base in turn, with CUDA graphs and without; ratios are to the base of the round.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generate import BATCHES, PROMPT, SHAPES, TEXTS, VOCABULARY
from guarded import guarded
from machine import machine
from text import SMALL, write
from text_alone import Asked, prompt

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTERS, RANK, ALPHA = 8, 16, 32.0
TOKENS, ROUNDS = 64, 5


class Answered(Asked):
    """A request that has its text."""

    def __init__(self, text: str, adapter: str) -> None:
        super().__init__(0, text, TOKENS)
        self.text = ""
        if adapter:
            self.request.parameters["lora_name"] = adapter

    def send(self, answer: Any, final: bool | None = None) -> None:
        super().send(answer, final)
        self.text += b"".join(answer["text_output"].array.ravel().tolist()).decode()


def main(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine(), "prompt": PROMPT, "adapters": ADAPTERS, "rank": RANK}
    options.folder.mkdir(parents=True)
    guarded(found, "tokens", partial(compared, options.folder / "tokens", options.device))
    small = (SMALL, 1024, options.device, "float32")
    size = small if options.small else (SHAPES["1B"], VOCABULARY, options.device, "bfloat16")
    guarded(found, "rates", partial(rates, options.folder / "rates", options.device, size))
    return found


def loaded(folder: Path, device: str, graphs: bool = True) -> Any:
    from pilotlight_predictor.backends.base import Device, LoadSpec
    from pilotlight_predictor.backends.text import backend
    from pilotlight_predictor.repository.model_config import ModelConfig

    config = ModelConfig("text", cuda_graphs=() if device == "cuda" and graphs else None)
    return backend.load(LoadSpec(config, 1, folder, folder.parent, Device(device)))


def write_adapter(folder: Path, base: Path, seed: int, rank: int = RANK) -> Path:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    tensors = {}
    with safe_open(base / "model.safetensors", "pt") as weights:
        for key in weights.keys():  # noqa: SIM118 - it is no dict
            module = key.removesuffix(".weight")
            if module.endswith(TARGETS):
                outputs, inputs = weights.get_slice(key).get_shape()
                for kind, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                    values = torch.randn(shape) * 0.5 / math.sqrt(shape[1])
                    tensors[f"base_model.model.{module}.{kind}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": list(TARGETS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def compared(folder: Path, device: str) -> dict[str, Any]:
    """Texts of mixed batches that are those of merged weights, of all, in each stage."""
    write(folder, SMALL, 1024, device, "float32")
    adapters = {f"a{n}": write_adapter(folder / f"a{n}", folder, n, rank) for n, rank in enumerate((16, 4, 8, 40, 3))}
    instance, found = loaded(folder, device), dict[str, Any]()
    served: dict[str, Path] = {}
    for stage, names in {"first": ["a0", "a1"], "beside and beyond": ["a2", "a3"]}.items():
        for name in names:
            instance.adapters.load(name, str(adapters[name]))
            served[name] = adapters[name]
        for turn in ("captured", "replayed"):
            guarded(found, f"{stage}, {turn}", partial(same, instance, folder, device, served))
    instance.adapters.load("a1", str(adapters["a4"]), replace=True)
    instance.adapters.unload("a2")
    del served["a2"]
    guarded(found, "replaced and unloaded", lambda: same(instance, folder, device, served | {"a1": adapters["a4"]}))
    graphs = instance.engine._step_graphs
    found["graphs"] = None if graphs is None else sorted(map(list, graphs.graphs))
    instance.close()
    return found


def same(instance: Any, base: Path, device: str, served: Mapping[str, Path]) -> dict[str, int]:
    texts = [prompt(seed, 5 + 3 * seed) for seed in range(15)]
    names = ["", *served]
    asked = [Answered(text, names[n % len(names)]) for n, text in enumerate(texts)]
    answer(instance, asked)
    expected = [""] * len(texts)
    for number, name in enumerate(names):
        own = range(number, len(texts), len(names))
        for n, text in zip(own, merged_texts(base, device, served.get(name), [texts[n] for n in own]), strict=True):
            expected[n] = text
    return {
        "texts": len(texts), "same": sum(a.text.split() == b.split() for a, b in zip(asked, expected, strict=True)),
        "first_words_same": sum(a.text.split()[:8] == b.split()[:8] for a, b in zip(asked, expected, strict=True)),
    }  # fmt: skip


def merged_texts(base: Path, device: str, adapter: Path | None, texts: Sequence[str]) -> list[str]:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base).to(device)
    updates = load_file(adapter / "adapter_model.safetensors", device) if adapter else {}
    answers = []
    with torch.no_grad():
        for name, module in model.named_modules():
            if (down := updates.get(f"base_model.model.{name}.lora_A.weight")) is not None:
                up = updates[f"base_model.model.{name}.lora_B.weight"]
                module.weight += ALPHA / len(down) * up @ down
        for text in texts:
            ids = words(text, return_tensors="pt")["input_ids"].to(device)
            how = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 1}
            # As ignore_eos: </s> may be chosen and does not end the text.
            out = model.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=-1, **how)
            answers.append(words.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    return answers


def rates(folder: Path, device: str, size: tuple[Any, ...]) -> dict[str, Any]:
    write(folder, *size)
    instance, found = loaded(folder, device), dict[str, Any]()
    names = [f"a{number}" for number in range(ADAPTERS)]
    batches = {"base": [""], "one adapter": names[:1], "all adapters and the base": ["", *names]}
    for rows in BATCHES:
        guarded(found, f"{rows} rows, none loaded", lambda rows=rows: one_rate(instance, [""], rows))
    began = perf_counter()
    for number, name in enumerate(names):
        instance.adapters.load(name, str(write_adapter(folder / name, folder, number)))
    found["written_and_loaded_s"] = round(perf_counter() - began, 1)
    graphs = instance.engine._step_graphs
    for how in ("graphs", "no graphs") if graphs is not None else ("no graphs",):
        instance.engine._step_graphs = graphs if how == "graphs" else None
        for rows in BATCHES:
            guarded(found, f"{rows} rows, {how}", lambda rows=rows: compared_rates(instance, batches, rows))
    instance.close()
    return found


def compared_rates(instance: Any, batches: Mapping[str, Sequence[str]], rows: int) -> dict[str, float]:
    """Median tokens a second of rounds in which the batches take turns; the first round captures graphs."""
    rounds = [{name: one_rate(instance, adapters, rows) for name, adapters in batches.items()} for _ in range(ROUNDS)]
    found = {name: round(median(each[name] for each in rounds[1:]), 1) for name in batches}
    for name in list(found)[1:]:
        found[f"{name}, ratio"] = round(median(each[name] / each["base"] for each in rounds[1:]), 3)
    return found


def one_rate(instance: Any, adapters: Sequence[str], rows: int) -> float:
    asked = [Answered(TEXTS[row], adapters[row % len(adapters)]) for row in range(rows)]
    began = perf_counter()
    answer(instance, asked)
    return round(rows * TOKENS / (perf_counter() - began), 1)


def answer(instance: Any, asked: Sequence[Answered]) -> None:
    instance.begin(asked)
    for each in asked:
        assert each.ended.wait(200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    print(json.dumps(main(parser.parse_args()), indent=1))
