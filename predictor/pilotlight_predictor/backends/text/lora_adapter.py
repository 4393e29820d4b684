"""LoRA adapter on disk, as peft's `save_pretrained` writes it: read and checked against its base model.

Only safetensors are read, never pickles. What cannot be served exactly is refused with the field and the fix. The
weights decide which modules are adapted: patterns of a file are never run as regular expressions.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.core.generation_params import as_json
from pilotlight_predictor.errors import LoadFailed

if TYPE_CHECKING:
    import torch

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
PICKLE: Final = "adapter_model.bin"
DOWN: Final = "lora_A"
UP: Final = "lora_B"
PREFIX: Final = "base_model.model."
MAX_RANK: Final = 512
# Fields that change the result; the values that do not are accepted. Some initialisations change the base's weights.
UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "use_dora": (False,), "modules_to_save": ([],), "bias": ("none",), "lora_bias": (False,),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"), "layer_replication": ([],),
    "trainable_token_indices": ([], {}), "target_parameters": ([],), "alora_invocation_tokens": ([],),
    "use_qalora": (False,), "use_bdlora": (False,), "arrow_config": (), "kasa_config": (), "monteclora_config": (),
}  # fmt: skip
MERGE: Final = "merge the adapter into its base model (peft's merge_and_unload) and serve the result as a model"


class LoraConfig(msgspec.Struct, frozen=True):
    """Fields of adapter_config.json that a forward pass needs."""

    r: int
    lora_alpha: float
    peft_type: str = ""
    target_modules: list[str] | str | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


class LinearShape(NamedTuple):
    inputs: int
    outputs: int


class LowRank(NamedTuple):
    """Update of one module: x → (x · downᵀ) · up, with the scale in `up`. [rank, inputs] and [rank, outputs]."""

    down: "torch.Tensor"
    up: "torch.Tensor"


class LoraAdapter(NamedTuple):
    rank: int  # the largest of its modules
    modules: Mapping[str, LowRank]


def read_adapter(name: str, folder: Path, shapes: Mapping[str, LinearShape | None]) -> LoraAdapter:
    """Return the adapter in float32 on the CPU. `shapes`: by name all modules of the base, None if not linear.

    Raise LoadFailed if it is damaged, not supported, or does not fit the base.
    """
    try:
        config = _read_config(folder)
        pairs = _read_weights(folder)
        _check_targets(config, pairs, shapes)
        modules = {module: _low_rank(config, module, pair, shapes[module]) for module, pair in pairs.items()}
    except LoadFailed as error:
        raise LoadFailed(f"adapter '{name}': {error}") from None
    return LoraAdapter(max(len(each.down) for each in modules.values()), modules)


def _read_config(folder: Path) -> LoraConfig:
    try:
        document = msgspec.json.decode((folder / CONFIG).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise LoadFailed(
            f"{folder / CONFIG} cannot be read ({error.strerror}); give a folder that peft saved"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{CONFIG} is not a JSON object: {error}") from None
    if document.get("peft_type") != "LORA":
        raise LoadFailed(f"peft_type = {as_json(document.get('peft_type'))} in {CONFIG}, must be LORA; {MERGE}")
    for field, neutral in UNSUPPORTED.items():
        if (value := document.get(field)) is not None and value not in neutral:
            raise LoadFailed(f"{field} = {as_json(value)} in {CONFIG} is not supported; train without it, or {MERGE}")
    try:
        config = msgspec.convert(document, LoraConfig)
    except msgspec.ValidationError as error:
        raise LoadFailed(f"{CONFIG}: {error}; save the adapter again with peft") from None
    for module in config.alpha_pattern or ():
        if not all(part.isidentifier() or part.isdigit() for part in module.split(".")):
            raise LoadFailed(f"alpha_pattern has {as_json(module)} in {CONFIG}, must have names of modules; {MERGE}")
    return config


def _read_weights(folder: Path) -> dict[str, dict[str, "torch.Tensor"]]:
    """Return the tensors by module and kind, lora_A and lora_B."""
    if not (folder / WEIGHTS).is_file() and (folder / PICKLE).exists():
        raise LoadFailed(f"{PICKLE} is a pickle, which can run code; save the adapter as {WEIGHTS}, peft's default")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise LoadFailed(f"{folder / WEIGHTS} cannot be read: {first_line(error)}; copy it again") from None
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        module, _, kind = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if kind not in (DOWN, UP):
            fix = "save it with save_embedding_layers=False"
            raise LoadFailed(f"{WEIGHTS} has '{key}', which is no LoRA weight of a linear layer; {fix}, or {MERGE}")
        pairs.setdefault(module, {})[kind] = tensor
    if not pairs:
        raise LoadFailed(f"{WEIGHTS} has no weights; save the adapter again with peft")
    return pairs


def _check_targets(config: LoraConfig, pairs: Mapping[str, Any], shapes: Mapping[str, LinearShape | None]) -> None:
    """Raise LoadFailed unless every adapted module is a linear one of the base, and target_modules names the same."""
    for module in pairs:
        if module not in shapes:
            raise LoadFailed(
                f"its module '{module}' is not in the base model; serve it with the base it was trained on"
            )
        if shapes[module] is None or ".experts." in module:
            raise LoadFailed(f"its module '{module}' is not a linear layer that can be adapted; {MERGE}")
    targets = config.target_modules if isinstance(config.target_modules, list) else []
    for target in targets:
        if not any(_named(module, target) for module in pairs):
            missing = "weights" if any(_named(module, target) for module in shapes) else "module of the base model"
            raise LoadFailed(f"target_modules has '{target}', for which there is no {missing}; train it again without")
    if targets and (extra := [module for module in pairs if not any(_named(module, each) for each in targets)]):
        raise LoadFailed(f"{WEIGHTS} has '{extra[0]}', which target_modules does not name; add it there")


def _low_rank(
    config: LoraConfig, module: str, pair: Mapping[str, "torch.Tensor"], shape: LinearShape | None
) -> LowRank:
    assert shape is not None
    if pair.keys() != {DOWN, UP}:
        raise LoadFailed(f"{WEIGHTS} has '{module}' without {' and '.join({DOWN, UP} - pair.keys())}; copy it again")
    rank = pair[DOWN].shape[0] if config.rank_pattern and pair[DOWN].dim() else config.r
    if not 0 < rank <= MAX_RANK:
        raise LoadFailed(f"r = {rank}, must be from 1 to {MAX_RANK}; train it with a smaller r, or {MERGE}")
    for kind, expected in ((DOWN, [rank, shape.inputs]), (UP, [shape.outputs, rank])):
        if (found := list(pair[kind].shape)) != expected:
            why = f"its module '{module}' has {kind} of shape {found}, the base needs {expected}"
            raise LoadFailed(f"{why}; serve it with the base it was trained on")
    alphas = (alpha for name, alpha in (config.alpha_pattern or {}).items() if _named(module, name))
    scale = next(alphas, config.lora_alpha) / (math.sqrt(rank) if config.use_rslora else rank)
    update = LowRank(pair[DOWN].float(), (pair[UP].float() * scale).T.contiguous())
    if not all(tensor.isfinite().all() for tensor in update):  # rows of others would get it: 0 times NaN is NaN
        raise LoadFailed(f"its module '{module}' has values that are not finite; train it again")
    return update


def _named(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
