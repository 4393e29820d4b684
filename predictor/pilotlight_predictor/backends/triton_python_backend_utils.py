"""What Triton's Python models import as `triton_python_backend_utils`: requests, responses, tensors, types.

triton_model.py puts this module under that name and turns our requests into these and back. Decoupled models and calls
to other models are refused by name.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import Array

_TYPES: Final = (
    ("TYPE_INVALID", None), ("TYPE_BOOL", np.bool_), ("TYPE_UINT8", np.uint8), ("TYPE_UINT16", np.uint16),
    ("TYPE_UINT32", np.uint32), ("TYPE_UINT64", np.uint64), ("TYPE_INT8", np.int8), ("TYPE_INT16", np.int16),
    ("TYPE_INT32", np.int32), ("TYPE_INT64", np.int64), ("TYPE_FP16", np.float16), ("TYPE_FP32", np.float32),
    ("TYPE_FP64", np.float64), ("TYPE_STRING", np.object_),
)  # fmt: skip
_BY_NAME: Final = dict(_TYPES)


class TritonModelException(Exception):
    """A model raises it to fail a request with a message that the client sees."""


class TritonError:
    """A message for the client and Triton's code for it."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = str(message), code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


class Tensor:
    """A named array; of strings when its type is object or str."""

    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            raise TritonModelException(f"Tensor {name!r} was given {type(array).__name__}, must be a numpy array")
        self._name = name
        self._array: Any = array.astype(np.object_) if array.dtype.kind in "SU" else array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        found: Array = self._array
        return found

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.type)

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, source: Any) -> "Tensor":
        return Tensor(name, np.from_dlpack(source))


_CALLS: Final = "calls to other models are not served yet; use an ensemble"


class InferenceRequest:
    """What a model makes to call another one, which is refused; the requests that it is given are a subclass."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TritonModelException(_CALLS)


class ServedRequest(InferenceRequest):
    """One request as a model sees it."""

    def __init__(self, request: InferRequest, inputs: Sequence[Tensor], output_names: Sequence[str]) -> None:
        self._request, self._inputs, self._output_names = request, list(inputs), list(output_names)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._output_names

    def request_id(self) -> str:
        return self._request.id

    def correlation_id(self) -> int | str:
        found: int | str = self._request.parameters.get("sequence_id", 0)
        return found

    def model_name(self) -> str:
        return self._request.model

    def model_version(self) -> int:
        return self._request.version

    def parameters(self) -> str:
        return json.dumps(self._request.parameters)

    def priority(self) -> int:
        return self._request.priority

    def timeout(self) -> int:
        return self._request.timeout_us

    def flags(self) -> int:
        return 0

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> Any:
        raise TritonModelException("this model answers once per request: decoupled responses are not served here")

    def exec(self, *_: Any, **__: Any) -> Any:
        raise TritonModelException(_CALLS)

    def async_exec(self, *_: Any, **__: Any) -> Any:
        raise TritonModelException(_CALLS)


class InferenceResponse:
    """The outputs of one request, or an error in their place."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Logger:
    """Triton's log calls on the server's own log."""

    _log = logging.getLogger("pilotlight.model")

    @classmethod
    def log(cls, message: str, level: int = logging.INFO) -> None:
        cls._log.log(level, "%s", message)

    @classmethod
    def log_info(cls, message: str) -> None:
        cls._log.info("%s", message)

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls._log.warning("%s", message)

    @classmethod
    def log_error(cls, message: str) -> None:
        cls._log.error("%s", message)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        cls._log.debug("%s", message)


def get_input_tensor_by_name(inference_request: ServedRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((tensor for tensor in model_config.get("input", []) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((tensor for tensor in model_config.get("output", []) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return _BY_NAME[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    return _TYPES[data_type][1]


def numpy_to_triton_type(data_type: Any) -> int:
    wanted = np.dtype(data_type).type
    wanted = np.object_ if wanted in (np.bytes_, np.str_) else wanted
    return next(number for number, (_, found) in enumerate(_TYPES) if number and found is wanted)
