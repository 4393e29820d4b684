"""Comparison of a configuration with the tensors of the model file; part of `complete`. Pure."""

from collections.abc import Sequence

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig
from pilotlight_predictor.tensors import Shape, TensorSpec


def check_agreement(config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise LoadFailed with the tensor, its declaration in the file and the one in the configuration."""
    _check_all(config, "input", config.inputs, inputs)
    _check_all(config, "output", config.outputs, outputs)
    if inputs:
        _check_missing(config, inputs)


def _check_all(
    config: ModelConfig, direction: str, tensors: Sequence[TensorConfig], specs: Sequence[TensorSpec]
) -> None:
    if not specs:
        return
    known = {spec.name: spec for spec in specs}
    for tensor in tensors:
        if tensor.name not in known:
            raise LoadFailed(
                f"{config.name}: {direction} '{tensor.name}' is in the configuration but not in the model file, "
                f"whose {direction}s are {', '.join(known)}{_close(tensor.name, known)}"
            )
        _check_one(config, direction, tensor, known[tensor.name])


def _close(name: str, known: dict[str, TensorSpec]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _check_one(config: ModelConfig, direction: str, tensor: TensorConfig, spec: TensorSpec) -> None:
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


def _check_missing(config: ModelConfig, specs: Sequence[TensorSpec]) -> None:
    """Check that every required input is declared or provided by the server."""
    declared = {tensor.name for tensor in config.inputs} | _server_inputs(config)
    for spec in specs:
        if spec.name not in declared and not spec.optional:
            raise LoadFailed(
                f"{config.name}: the model file needs input '{spec.name}' ({spec.datatype} {list(spec.shape)}), which "
                "the configuration leaves out; add it, or leave all inputs out to have them derived"
            )


def _server_inputs(config: ModelConfig) -> set[str]:
    sequence = config.sequence_batching or {}
    return {
        *(name for tensor in config.raw.get("batch_input", []) for name in tensor["target_name"]),
        *(control["name"] for control in sequence.get("control_input", [])),
        *(state["input_name"] for state in sequence.get("state", [])),
    }
