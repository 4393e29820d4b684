"""Auto-completion: derive missing parts of a configuration from the model file, and reject contradictions. Pure.

A backend reads the file and reports `ModelFileInfo`; `complete` merges it with the configuration (or with none) into
the `ModelConfig` that is served. Tensors that a configuration leaves out follow Triton's auto-completion.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.wire.messages import suggestion
from pilotlight_predictor.core.tensors import Shape, TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import (
    DynamicBatching,
    ModelConfig,
    TensorConfig,
    raw_config,
    server_tensors,
)
from pilotlight_predictor.repository.schema import (
    DYNAMIC_BATCHING,
    INPUT,
    MODEL_CONFIG,
    OUTPUT,
    data_type_name,
    with_defaults,
)

# Triton's `platform` of a backend with one format.
BACKEND_PLATFORMS: Final = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}


class ModelFileInfo(Struct, frozen=True):
    """Tensors of a model file, as its backend read them: full shapes, -1 for a variable size."""

    backend: str
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    batchable: bool = False  # every input and output has a leading dimension of -1
    open_inputs: bool = False  # the model takes other forms of its inputs too
    input_aliases: frozenset[str] = frozenset()  # names that clients of other servers have for the first input


# Rows of a request to a model of tables, whose clients send whole tables; an image or a text is large by itself.
TABLE_ROWS: Final = 4096


class BatchDefaults(Struct, frozen=True):
    """Batching of models without a batching configuration; 0 or 1 means none."""

    max_batch_size: int = 32
    delay_us: int = 0


def complete(config: ModelConfig | None, name: str, info: ModelFileInfo, defaults: BatchDefaults) -> ModelConfig:
    """Return the configuration to serve. Raise LoadFailed where file and configuration disagree."""
    merged = config or ModelConfig(name="", raw=raw_config({}))
    merged = replace(merged, open_inputs=info.open_inputs, input_aliases=info.input_aliases)
    info = _without_server_tensors(info, merged)
    merged = _with_identity(merged, name, info)
    if not info.inputs and not info.outputs:
        _check_declared(merged)
        return merged
    if not (merged.inputs and merged.outputs):
        merged = _with_batching(merged, info, defaults)
    merged = _with_tensors(merged, info)
    check_agreement(merged, info.inputs, info.outputs)
    return with_raw(merged)


def _without_server_tensors(info: ModelFileInfo, config: ModelConfig) -> ModelFileInfo:
    """Remove control and state tensors, which the server exchanges with the model and clients never see."""
    if config.sequence_batching is None:
        return info
    server_inputs, server_outputs = server_tensors(config)
    outputs = {tensor.name for tensor in config.outputs}
    return replace(
        info,
        inputs=[spec for spec in info.inputs if spec.name not in server_inputs],
        outputs=[spec for spec in info.outputs if spec.name not in server_outputs - outputs],
    )


def metadata_specs(config: ModelConfig) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs as clients see them: with the batch dimension if the model batches."""
    front = (-1,) if config.max_batch_size > 0 else ()

    def specs(tensors: Sequence[TensorConfig]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t.name, t.datatype, front + t.dims, t.optional, t.columns) for t in tensors)

    return specs(config.inputs), specs(config.outputs)


def _with_identity(config: ModelConfig, name: str, info: ModelFileInfo) -> ModelConfig:
    backend = config.backend if config.backend or config.platform else info.backend
    platform = config.platform or BACKEND_PLATFORMS.get(backend, "")
    raw = {**config.raw, "name": name, "platform": platform}
    if backend:
        raw["backend"] = backend
    return replace(config, name=name, backend=backend, platform=platform, raw=raw)


def _check_declared(config: ModelConfig) -> None:
    """Require complete declarations: the model file of this backend yields no tensors to derive from."""
    for direction, tensors in (("input", config.inputs), ("output", config.outputs)):
        for tensor in tensors:
            missing = "data_type" if not tensor.datatype else "dims" if not tensor.dims else ""
            if missing:
                raise LoadFailed(
                    f"{config.name}: {direction} '{tensor.name}' has no {missing}, and the model file does not"
                    f" define it; add {missing} to config.pbtxt"
                )


def _with_batching(config: ModelConfig, info: ModelFileInfo, defaults: BatchDefaults) -> ModelConfig:
    """Decide max_batch_size and dynamic batching for a configuration that leaves tensors to the model file."""
    if config.max_batch_size > 0 and not info.batchable:
        raise LoadFailed(
            f"{config.name}: max_batch_size is {config.max_batch_size}, but the model does not batch: not every input "
            "and output has a leading dimension of variable size; set max_batch_size: 0"
        )
    decided = "max_batch_size" in config.explicit_fields or bool(config.inputs or config.outputs)
    if not decided and info.batchable:
        preferred = config.dynamic_batching.preferred_batch_size if config.dynamic_batching else ()
        rows = TABLE_ROWS if info.open_inputs and defaults.max_batch_size > 1 else 0
        size = max((defaults.max_batch_size, rows, *preferred))
        config = replace(config, max_batch_size=size if size > 1 else 0)
    largest = max(config.dynamic_batching.preferred_batch_size, default=0) if config.dynamic_batching else 0
    if largest > config.max_batch_size:
        raise LoadFailed(
            f"{config.name}: dynamic_batching.preferred_batch_size has {largest}, must be at most max_batch_size, "
            f"which is {config.max_batch_size} for this model file"
        )
    scheduled = config.sequence_batching is not None or config.ensemble
    if config.max_batch_size > 1 and config.dynamic_batching is None and not scheduled:
        return replace(config, dynamic_batching=DynamicBatching(max_queue_delay_us=defaults.delay_us))
    return config


def _with_tensors(config: ModelConfig, info: ModelFileInfo) -> ModelConfig:
    """Add missing tensors, data types and dims."""
    batched = config.max_batch_size > 0
    inputs = config.inputs or tuple(_tensor(spec, batched) for spec in info.inputs)
    outputs = config.outputs or tuple(_tensor(spec, batched) for spec in info.outputs)
    return replace(
        config,
        inputs=tuple(_with_details(tensor, info.inputs, batched) for tensor in inputs),
        outputs=tuple(_with_details(tensor, info.outputs, batched) for tensor in outputs),
    )


def _tensor(spec: TensorSpec, batched: bool) -> TensorConfig:
    dims = spec.shape[1:] if batched else spec.shape
    return TensorConfig(spec.name, spec.datatype, dims, optional=spec.optional, columns=spec.columns)


def _with_details(tensor: TensorConfig, specs: Sequence[TensorSpec], batched: bool) -> TensorConfig:
    spec = next((spec for spec in specs if spec.name == tensor.name), None)
    if spec is None:
        return tensor
    derived = _tensor(spec, batched)
    kind, dims = tensor.datatype or derived.datatype, tensor.dims or derived.dims
    return replace(tensor, datatype=kind, dims=dims, columns=derived.columns)


def with_raw(config: ModelConfig) -> ModelConfig:
    """Update `raw` to the completed typed view."""
    raw_inputs = {tensor["name"]: tensor for tensor in config.raw.get("input", [])}
    raw_outputs = {tensor["name"]: tensor for tensor in config.raw.get("output", [])}
    raw: dict[str, Any] = {
        **config.raw,
        "max_batch_size": config.max_batch_size,
        "input": [
            with_defaults({**raw_inputs.get(t.name, {"optional": t.optional}), **_io(t)}, INPUT) for t in config.inputs
        ],
        "output": [with_defaults({**raw_outputs.get(t.name, {}), **_io(t)}, OUTPUT) for t in config.outputs],
    }
    if config.dynamic_batching is not None:
        batching, size = config.dynamic_batching, config.max_batch_size
        before = config.raw.get("dynamic_batching", {"max_queue_delay_microseconds": batching.max_queue_delay_us})
        sizes = list(batching.preferred_batch_size) or ([size] if size else [])
        raw["dynamic_batching"] = with_defaults({**before, "preferred_batch_size": sizes}, DYNAMIC_BATCHING)
    return replace(config, raw={name: raw[name] for name in MODEL_CONFIG.fields if name in raw})


def _io(tensor: TensorConfig) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": data_type_name(tensor.datatype), "dims": list(tensor.dims)}


def check_agreement(config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise LoadFailed with the tensor, its declaration in the file and the one in the configuration."""
    for direction, tensors, specs in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        known = {spec.name: spec for spec in specs}
        for tensor in tensors if known else ():
            if tensor.name not in known:
                raise LoadFailed(
                    f"{config.name}: {direction} '{tensor.name}' is in the configuration but not in the model file, "
                    f"whose {direction}s are {', '.join(known)}{suggestion(tensor.name, known)}"
                )
            _check_tensor(config, direction, tensor, known[tensor.name])
    provided = {name for tensor in config.raw.get("batch_input", []) for name in tensor["target_name"]}
    declared = {tensor.name for tensor in config.inputs} | provided | server_tensors(config)[0]
    for spec in inputs:
        if spec.name not in declared and not spec.optional:
            raise LoadFailed(
                f"{config.name}: the model file needs input '{spec.name}' ({spec.datatype} {list(spec.shape)}), which "
                "the configuration leaves out; add it, or leave out all inputs to derive them"
            )


def _check_tensor(config: ModelConfig, direction: str, tensor: TensorConfig, spec: TensorSpec) -> None:
    what = f"{config.name}: {direction} '{tensor.name}'"
    if tensor.datatype != spec.datatype:
        raise LoadFailed(f"{what} is {spec.datatype} in the model file but {tensor.datatype} in the configuration")
    if tensor.allow_ragged:  # rows of a ragged batch are concatenated, so the shape of the file differs
        return
    batched = config.max_batch_size > 0
    if batched and (not spec.shape or spec.shape[0] != -1):
        raise LoadFailed(
            f"{what} has the shape {list(spec.shape)} in the model file, which does not batch, but max_batch_size is "
            f"{config.max_batch_size}; set max_batch_size: 0 and write dims in full"
        )
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    shape = (-1, *dims) if batched else dims
    if not _fits(shape, spec.shape, lenient=direction == "output"):
        raise LoadFailed(
            f"{what} has the shape {list(spec.shape)} in the model file but {list(shape)} in the configuration"
            f"{_batch_hint(shape, spec.shape, batched)}"
        )


def _fits(configured: Shape, actual: Shape, lenient: bool) -> bool:
    """Whether a configured shape fits the one of the file: a fixed size fits -1, and with `lenient` (outputs) -1 fits a
    fixed size."""
    if not actual and configured == (1,):  # dims cannot be empty in Triton's format, so a scalar is written as [1]
        return True
    return len(configured) == len(actual) and all(
        mine == theirs or theirs == -1 or (lenient and mine == -1)
        for mine, theirs in zip(configured, actual, strict=True)
    )


def _batch_hint(configured: Shape, actual: Shape, batched: bool) -> str:
    if batched and len(configured) == len(actual) + 1:
        return "; with max_batch_size > 0 dims leave the batch dimension out"
    if not batched and len(configured) + 1 == len(actual) and actual[0] == -1:
        return "; set max_batch_size > 0, or write the leading dimension as -1"
    return ""
