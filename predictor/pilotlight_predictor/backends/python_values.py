"""Between tensors and what a user's Python sees: plain numpy arrays in, plain numpy arrays out, checked with care.

User code knows no BF16: it gets float32 and may return it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight_predictor.errors import BackendFailed
from pilotlight_predictor.inference import Inputs, Outputs
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig
from pilotlight_predictor.tensors import (
    NUMPY_TYPES,
    Array,
    Shape,
    Tensor,
    TensorSpec,
    bf16_from_float,
    bf16_to_float,
    tensor,
)


class WrongReturn(BackendFailed):
    """The model returned something that is no answer; the text says what it was and what it must be."""


class Output(NamedTuple):
    """What is declared of one output: no datatype or no shape means any. The shape has the batch dimension in front."""

    datatype: str = ""
    shape: Shape | None = None


Declared = Mapping[str, Output]
_ANY: Final = Output()


def declared_outputs(config: ModelConfig, outputs: Sequence[TensorSpec]) -> dict[str, Output]:
    """By name: what the configuration says, else what the module says by OUTPUTS."""
    told = {spec.name: Output(spec.datatype, spec.shape) for spec in outputs}
    if not config.outputs:
        return told
    return {tensor.name: _configured(config, tensor, told.get(tensor.name, _ANY)) for tensor in config.outputs}


def _configured(config: ModelConfig, tensor: TensorConfig, told: Output) -> Output:
    front = (-1,) if config.max_batch_size > 0 else ()
    dims = tensor.dims if tensor.reshape is None else tensor.reshape  # the model gives the shape before the reshape
    known = bool(tensor.dims)
    return Output(tensor.datatype or told.datatype, front + dims if known else told.shape)


def arrays(inputs: Inputs) -> dict[str, Array]:
    return {name: array_of(tensor) for name, tensor in inputs.items()}


def array_of(tensor: Tensor) -> Array:
    return bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array


def outputs_of(returned: Any, declared: Declared) -> Outputs:
    """A dict of arrays, or one array when there is one output → outputs in the declared types, shapes and names."""
    if isinstance(returned, (np.ndarray, np.generic)):
        returned = {_only_name(declared): returned}
    if not isinstance(returned, Mapping):
        raise WrongReturn(
            f"the model returned {_describe(returned)}, must be a dict of output name → numpy array, or one numpy array"
        )
    missing = [name for name in declared if name not in returned]
    if missing:
        raise WrongReturn(f"the model returned {_describe(returned)}, must also hold {', '.join(missing)}")
    unknown = [str(name) for name in returned if str(name) not in declared] if declared else []
    if unknown:
        raise WrongReturn(f"the model returned output {', '.join(unknown)}, must be among {', '.join(declared)}")
    return {str(name): _output(str(name), value, declared.get(str(name), _ANY)) for name, value in returned.items()}


def _only_name(declared: Declared) -> str:
    if len(declared) > 1:
        raise WrongReturn(f"the model returned one array, must be a dict with the outputs {', '.join(declared)}")
    return next(iter(declared), "output")


def _output(name: str, value: Any, declared: Output) -> Tensor:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise WrongReturn(f"the model returned {type(value).__name__} for output {name!r}, must be a numpy array")
    array = np.asarray(value)
    _check_shape(name, array.shape, declared.shape)
    found = _typed(name, array, declared.datatype)
    if declared.datatype and found.datatype != declared.datatype:
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {declared.datatype}")
    return found


def _check_shape(name: str, shape: Shape, wanted: Shape | None) -> None:
    if wanted is None or shape == wanted:
        return
    if not shape and wanted == (1,):  # dims cannot be empty in Triton's format, so its users write a scalar so
        return
    if len(shape) != len(wanted) or any(want not in (-1, got) for want, got in zip(wanted, shape, strict=True)):
        raise WrongReturn(f"the model returned shape {list(shape)} for output {name!r}, must be {list(wanted)}")


def _typed(name: str, array: Array, datatype: str) -> Tensor:
    if datatype == "BF16":
        return Tensor(datatype, array if array.dtype == np.uint16 else bf16_from_float(array))
    if datatype and datatype != "BYTES":
        array = _cast(name, array, datatype)
    try:
        return tensor(array)
    except TypeError as error:
        raise WrongReturn(f"the model returned for output {name!r}: {error}") from None


def _cast(name: str, array: Array, datatype: str) -> Array:
    """float64 to FP32 and the like are what numpy code gives; a change of kind is a mistake."""
    wanted = NUMPY_TYPES[datatype]
    if array.dtype == wanted:
        return array
    if array.dtype == object or not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {datatype}")
    return array.astype(wanted)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {type(item).__name__}" for name, item in value.items()) + "}"
    return type(value).__name__
