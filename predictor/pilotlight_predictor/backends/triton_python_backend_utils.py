"""The module that Triton's Python models import as `triton_python_backend_utils` (pb_utils).

Each loaded model gets its own copy (`create_module`), whose `InferenceRequest`, metrics and `get_model_dir` belong to
that model. triton_model.py converts requests and responses.
"""

import logging
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.triton_calls import BlsCaller
from pilotlight_predictor.backends.triton_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from pilotlight_predictor.backends.triton_management import ModelManagement
from pilotlight_predictor.backends.triton_metrics import Metric, MetricFamily
from pilotlight_predictor.backends.triton_requests import InferenceRequest, ResponseSender
from pilotlight_predictor.backends.triton_types import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceTrace,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    numpy_to_triton_type,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from pilotlight_predictor.tensors import Array

NAME: Final = "triton_python_backend_utils"
InferenceResponseSender = ResponseSender
load_model, unload_model, is_model_ready = (
    ModelManagement().load_model,
    ModelManagement().unload_model,
    ModelManagement().is_model_ready,
)
__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


class Logger:
    """pb_utils.Logger, writing to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG
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


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_model_dir() -> str:
    raise TritonModelException("only a model.py that a server has loaded has a directory")


def serialize_byte_tensor(input_tensor: Array) -> Array:
    """Serialise strings as Triton does: the length of each, then its bytes."""
    items = [item if isinstance(item, bytes) else str(item).encode() for item in input_tensor.ravel()]
    joined = b"".join(struct.pack("<I", len(item)) + item for item in items)
    return np.array(joined, dtype=np.object_)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    return np.array(list(_strings(memoryview(encoded_tensor))), dtype=np.object_)


def _strings(encoded: memoryview) -> Iterator[bytes]:
    start = 0
    while start < len(encoded):
        (length,) = struct.unpack_from("<I", encoded, start)
        start += 4 + length
        yield bytes(encoded[start - length : start])


def create_module(spec: LoadSpec) -> tuple[ModuleType, BlsCaller]:
    """Create the pb_utils module of one model, and its BlsCaller."""
    caller = BlsCaller(spec)
    module = ModuleType(NAME, __doc__)
    module.__dict__.update({name: globals()[name] for name in __all__})
    module.__dict__["InferenceRequest"] = type("InferenceRequest", (InferenceRequest,), {"bls": caller})
    module.__dict__["get_model_dir"] = lambda: str(spec.path.parent)
    management = ModelManagement(caller)
    module.__dict__.update(
        {name: getattr(management, name) for name in ("load_model", "unload_model", "is_model_ready")}
    )
    module.__dict__["MetricFamily"] = type("MetricFamily", (MetricFamily,), {"bls": caller})
    return module, caller
