"""Conversion between tensors and the numpy arrays of user code, with checks of what it returns.

User code has no BF16: it gets float32 and may return it.
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
    """The model returned an invalid value; the text names it and what it must be."""


class DeclaredOutput(NamedTuple):
    """Declaration of one output; an empty datatype or no shape allows any. The shape includes the batch dimension."""

    datatype: str = ""
    shape: Shape | None = None


Declared = Mapping[str, DeclaredOutput]
_ANY: Final = DeclaredOutput()


def declared_outputs(config: ModelConfig, outputs: Sequence[TensorSpec]) -> dict[str, DeclaredOutput]:
    """Outputs by name, from the configuration, else from the module's OUTPUTS."""
    own = {spec.name: DeclaredOutput(spec.datatype, spec.shape) for spec in outputs}
    if not config.outputs:
        return own
    return {tensor.name: _configured(config, tensor, own.get(tensor.name, _ANY)) for tensor in config.outputs}


def _configured(config: ModelConfig, tensor: TensorConfig, own: DeclaredOutput) -> DeclaredOutput:
    front = (-1,) if config.max_batch_size > 0 else ()
    dims = tensor.dims if tensor.reshape is None else tensor.reshape  # the model returns the shape before the reshape
    known = bool(tensor.dims)
    return DeclaredOutput(tensor.datatype or own.datatype, front + dims if known else own.shape)


def arrays(inputs: Inputs) -> dict[str, Array]:
    return {name: array_of(tensor) for name, tensor in inputs.items()}


def array_of(tensor: Tensor) -> Array:
    return bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array


def outputs_of(returned: Any, declared: Declared) -> Outputs:
    """Convert a dict of arrays, or one array for a single output. Raises WrongReturn if it does not fit `declared`."""
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


def _output(name: str, value: Any, declared: DeclaredOutput) -> Tensor:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise WrongReturn(f"the model returned {type(value).__name__} for output {name!r}, must be a numpy array")
    array = np.asarray(value)
    _check_shape(name, array.shape, declared.shape)
    result = _typed(name, array, declared.datatype)
    if declared.datatype and result.datatype != declared.datatype:
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {declared.datatype}")
    return result


def _check_shape(name: str, shape: Shape, declared: Shape | None) -> None:
    if declared is None or shape == declared:
        return
    if not shape and declared == (1,):  # a scalar, since dims cannot be empty in Triton's format
        return
    if len(shape) != len(declared) or any(want not in (-1, got) for want, got in zip(declared, shape, strict=True)):
        raise WrongReturn(f"the model returned shape {list(shape)} for output {name!r}, must be {list(declared)}")


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
    """Cast within a kind, such as float64 to FP32. Raises WrongReturn for a change of kind."""
    dtype = NUMPY_TYPES[datatype]
    if array.dtype == dtype:
        return array
    if array.dtype == object or not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise WrongReturn(f"the model returned {array.dtype} for output {name!r}, must be {datatype}")
    return array.astype(dtype)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {type(item).__name__}" for name, item in value.items()) + "}"
    return type(value).__name__
