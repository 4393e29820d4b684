"""Tensors, responses, errors and types of `triton_python_backend_utils`; its requests are in requests.py."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from pilotlight_predictor.core.requests import Parameters
from pilotlight_predictor.core.tensors import Array, Shape

TYPES: Final = (
    ("TYPE_INVALID", None), ("TYPE_BOOL", np.bool_), ("TYPE_UINT8", np.uint8), ("TYPE_UINT16", np.uint16),
    ("TYPE_UINT32", np.uint32), ("TYPE_UINT64", np.uint64), ("TYPE_INT8", np.int8), ("TYPE_INT16", np.int16),
    ("TYPE_INT32", np.int32), ("TYPE_INT64", np.int64), ("TYPE_FP16", np.float16), ("TYPE_FP32", np.float32),
    ("TYPE_FP64", np.float64), ("TYPE_STRING", np.object_),
)  # fmt: skip
_BY_NAME: Final = {**dict(TYPES), "TYPE_BF16": np.float32}  # user code has no BF16

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 2


class TritonModelException(Exception):
    """Raised by a model to fail a request with a message that the client sees."""


class TritonError:
    """Message for the client, with Triton's error code."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = str(message), code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


class PreferredMemory:
    """Preferred memory of BLS responses; accepted, but responses are always in CPU memory."""

    def __init__(self, preferred_memory: int, device_id: int = 0) -> None:
        self.preferred_memory, self.device_id = preferred_memory, device_id


class InferenceTrace:
    """Trace object that models pass to BLS requests; the server's traces do not depend on it."""

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str:
        return self._context


class Tensor:
    """A named array; dtypes object and str hold strings."""

    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"Tensor {name!r} got {type(array).__name__}, must be a numpy array")
        self._name = name
        self._array: Any = array.astype(np.object_) if array.dtype.kind in "SU" else array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._array  # type: ignore[no-any-return]

    def shape(self) -> Shape:
        return self._array.shape  # type: ignore[no-any-return]

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.type)

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        """Export by DLPack, after a copy of read-only arrays such as those of a request: numpy does not export them."""
        if self._array.dtype == object:
            raise TritonModelException(f"tensor {self._name!r} holds strings, unsupported by DLPack: use as_numpy")
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        options = {name: value for name, value in options.items() if value is not None}
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, source: Any) -> "Tensor":
        """Create from any library's tensor, or from the capsule of its `to_dlpack`."""
        exporter = source if hasattr(source, "__dlpack__") else _Capsule(source)
        try:
            return Tensor(name, np.from_dlpack(exporter))
        except (BufferError, RuntimeError, TypeError, ValueError):
            from torch.utils.dlpack import from_dlpack  # for a tensor on a GPU

            return Tensor(name, from_dlpack(source).cpu().numpy())


class _Capsule:
    """Wrapper of a bare capsule with the exporter methods that numpy requires."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class InferenceResponse:
    """Outputs of one request, or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Parameters | str | None = None,
    ) -> None:
        self._outputs, self._error = list(output_tensors), error
        self.parameter_map = _parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self.parameter_map) if self.parameter_map else ""


def _parameters(parameters: Parameters | str | None) -> Parameters:
    """Validate response parameters, given as a map or its JSON."""
    try:
        values = json.loads(parameters) if isinstance(parameters, str) and parameters else parameters or {}
    except ValueError:
        raise TritonModelException("parameters of a response are not JSON, must be a map or its JSON") from None
    if not isinstance(values, Mapping):
        raise TritonModelException(f"parameters of a response are {type(values).__name__}, must be a map")
    for name, value in values.items():
        # Every protocol must be able to encode a value: gRPC has 64-bit integers, JSON has no infinity.
        plain = isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63)
        if not isinstance(name, str) or not (math.isfinite(value) if isinstance(value, float) else plain):
            kind = f"parameter {name!r} of a response is {type(value).__name__}"
            raise TritonModelException(f"{kind}, must be true, false, a number or text")
    return dict(values)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return _BY_NAME[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    return TYPES[data_type][1]


def numpy_to_triton_type(data_type: Any) -> int:
    target = np.dtype(data_type).type
    target = np.object_ if target in (np.bytes_, np.str_) else target
    return next(number for number, (_, dtype) in enumerate(TYPES) if number and dtype is target)
