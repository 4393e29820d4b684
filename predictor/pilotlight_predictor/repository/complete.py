"""Fills in what the author left to the model file, and refuses what contradicts it. Pure.

A backend reads the file and reports `Found`; `complete` joins that with the configuration (or with none) into the
`ModelConfig` that is served. Where a configuration leaves tensors out, Triton's auto-completion is followed.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.agreement import check_agreement
from pilotlight_predictor.repository.field_types import printed
from pilotlight_predictor.repository.model_config import DynamicBatching, ModelConfig, TensorConfig
from pilotlight_predictor.repository.raw import raw_config
from pilotlight_predictor.repository.schema import DYNAMIC_BATCHING, INPUT, MODEL_CONFIG, OUTPUT, data_type_name
from pilotlight_predictor.tensors import TensorSpec

# What Triton reports as `platform` for a backend that has one format.
BACKEND_PLATFORMS: Final = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}


class Found(Struct, frozen=True):
    """What a backend read in the model file: full shapes with the leading dimension, -1 where a size varies."""

    backend: str
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    batchable: bool = False  # every input and output has a leading dimension of -1


class BatchDefaults(Struct, frozen=True):
    """Batching for models whose author did not decide; 0 or 1 means none."""

    max_batch_size: int = 32
    delay_us: int = 0


def complete(config: ModelConfig | None, name: str, found: Found, defaults: BatchDefaults) -> ModelConfig:
    """The configuration to serve; raises LoadFailed where file and configuration disagree."""
    written = config or ModelConfig(name="", raw=raw_config({}))
    found = _without_ours(found, written)
    written = _identified(written, name, found)
    if not found.inputs and not found.outputs:
        _check_told(written)
        return written
    if not (written.inputs and written.outputs):
        written = _batched(written, found, defaults)
    written = _filled(written, found)
    check_agreement(written, found.inputs, found.outputs)
    return _in_step(written)


def _without_ours(found: Found, config: ModelConfig) -> Found:
    """Control tensors and states are between the server and the model: no client is told of them."""
    if config.sequence_batching is None:
        return found
    from pilotlight_predictor.repository.sequence_config import tensors_made_here

    made, kept = tensors_made_here(config)
    outputs = {tensor.name for tensor in config.outputs}
    return replace(
        found,
        inputs=[spec for spec in found.inputs if spec.name not in made],
        outputs=[spec for spec in found.outputs if spec.name not in kept - outputs],
    )


def metadata_specs(config: ModelConfig) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs as clients see them: with the batch dimension in front where the model batches."""
    front = (-1,) if config.max_batch_size > 0 else ()

    def specs(tensors: Sequence[TensorConfig]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.name, t.datatype, front + t.dims, t.optional) for t in tensors)

    return specs(config.inputs), specs(config.outputs)


def _identified(config: ModelConfig, name: str, found: Found) -> ModelConfig:
    backend = config.backend if config.backend or config.platform else found.backend
    platform = config.platform or BACKEND_PLATFORMS.get(backend, "")
    raw = {**config.raw, "name": name, "platform": platform}
    if backend:
        raw["backend"] = backend
    return replace(config, name=name, backend=backend, platform=platform, raw=raw)


def _check_told(config: ModelConfig) -> None:
    """Nothing can be derived, so whatever is declared must be declared in full."""
    for direction, tensors in (("input", config.inputs), ("output", config.outputs)):
        for tensor in tensors:
            missing = "data_type" if not tensor.datatype else "dims" if not tensor.dims else ""
            if missing:
                raise LoadFailed(
                    f"{config.name}: {direction} '{tensor.name}' has no {missing}, and the model file does not tell; "
                    f"add {missing} to config.pbtxt"
                )


def _batched(config: ModelConfig, found: Found, defaults: BatchDefaults) -> ModelConfig:
    """Decides max_batch_size and dynamic batching for a configuration that leaves tensors to the model file."""
    if config.max_batch_size > 0 and not found.batchable:
        raise LoadFailed(
            f"{config.name}: max_batch_size is {config.max_batch_size}, but the model does not batch: not every input "
            "and output has a leading dimension of variable size; set max_batch_size: 0"
        )
    decided = "max_batch_size" in config.given or bool(config.inputs or config.outputs)
    if not decided and found.batchable:
        config = replace(config, max_batch_size=_default_size(config, defaults))
    if config.dynamic_batching is not None and config.dynamic_batching.preferred_batch_size:
        _check_batches(config)
    if config.max_batch_size > 1 and config.dynamic_batching is None and _schedulable(config):
        return replace(config, dynamic_batching=DynamicBatching(max_queue_delay_us=defaults.delay_us))
    return config


def _default_size(config: ModelConfig, defaults: BatchDefaults) -> int:
    preferred = config.dynamic_batching.preferred_batch_size if config.dynamic_batching else ()
    size = max((defaults.max_batch_size, *preferred))
    return size if size > 1 else 0


def _check_batches(config: ModelConfig) -> None:
    assert config.dynamic_batching is not None
    largest = max(config.dynamic_batching.preferred_batch_size)
    if largest > config.max_batch_size:
        raise LoadFailed(
            f"{config.name}: dynamic_batching.preferred_batch_size has {largest}, must be at most max_batch_size, "
            f"which is {config.max_batch_size} for this model file"
        )


def _schedulable(config: ModelConfig) -> bool:
    return config.sequence_batching is None and not config.ensemble


def _filled(config: ModelConfig, found: Found) -> ModelConfig:
    """Tensors, and data types and dims of tensors, that the author left out."""
    batched = config.max_batch_size > 0
    inputs = config.inputs or tuple(_tensor(spec, batched) for spec in found.inputs)
    outputs = config.outputs or tuple(_tensor(spec, batched) for spec in found.outputs)
    return replace(
        config,
        inputs=tuple(_detailed(tensor, found.inputs, batched) for tensor in inputs),
        outputs=tuple(_detailed(tensor, found.outputs, batched) for tensor in outputs),
    )


def _tensor(spec: TensorSpec, batched: bool) -> TensorConfig:
    return TensorConfig(spec.name, spec.datatype, spec.shape[1:] if batched else spec.shape, optional=spec.optional)


def _detailed(tensor: TensorConfig, specs: Sequence[TensorSpec], batched: bool) -> TensorConfig:
    spec = next((spec for spec in specs if spec.name == tensor.name), None)
    if spec is None:
        return tensor
    derived = _tensor(spec, batched)
    return replace(tensor, datatype=tensor.datatype or derived.datatype, dims=tensor.dims or derived.dims)


def _in_step(config: ModelConfig) -> ModelConfig:
    """`raw` after the typed view was completed."""
    written = {tensor["name"]: tensor for tensor in config.raw.get("input", [])}
    written_outputs = {tensor["name"]: tensor for tensor in config.raw.get("output", [])}
    raw: dict[str, Any] = {
        **config.raw,
        "max_batch_size": config.max_batch_size,
        "input": [printed({**written.get(t.name, {"optional": t.optional}), **_io(t)}, INPUT) for t in config.inputs],
        "output": [printed({**written_outputs.get(t.name, {}), **_io(t)}, OUTPUT) for t in config.outputs],
    }
    if config.dynamic_batching is not None:
        raw["dynamic_batching"] = _batching_in_step(config, config.dynamic_batching)
    return replace(config, raw={name: raw[name] for name in MODEL_CONFIG.fields if name in raw})


def _io(tensor: TensorConfig) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": data_type_name(tensor.datatype), "dims": list(tensor.dims)}


def _batching_in_step(config: ModelConfig, batching: DynamicBatching) -> dict[str, Any]:
    written = config.raw.get("dynamic_batching", {"max_queue_delay_microseconds": batching.max_queue_delay_us})
    sizes = list(batching.preferred_batch_size) or ([config.max_batch_size] if config.max_batch_size else [])
    return printed({**written, "preferred_batch_size": sizes}, DYNAMIC_BATCHING)
