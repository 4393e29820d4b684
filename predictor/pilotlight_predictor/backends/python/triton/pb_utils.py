"""The module that Triton's Python models import as `triton_python_backend_utils` (pb_utils).

Each loaded model gets its own copy (`create_module`), whose `InferenceRequest`, metrics, model management and
`get_model_dir` belong to that model. model.py converts requests and responses.
"""

import logging
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, ModelLoader
from pilotlight_predictor.backends.python.triton.bls import (
    BlsCaller,
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from pilotlight_predictor.backends.python.triton.requests import InferenceRequest, ResponseSender
from pilotlight_predictor.backends.python.triton.types import (
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
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.repository.load_parameters import bytes_parameter, config_parameter, file_parameters

if TYPE_CHECKING:
    from pilotlight_predictor.metrics.custom import CustomFamily, CustomSeries
    from pilotlight_predictor.metrics.definitions import MetricKind

NAME: Final = "triton_python_backend_utils"
KINDS: Final[tuple["MetricKind", ...]] = ("counter", "gauge", "histogram")
InferenceResponseSender = ResponseSender
T = TypeVar("T")


class ModelManagement:
    """Load and unload functions of one calling model; without one they raise."""

    def __init__(self, caller: BlsCaller | None = None) -> None:
        self._caller = caller

    def load_model(self, model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load a model and wait until it is ready.

        `files` maps "file:<version>/<name>" to content and needs a `config` as JSON.
        """

        def load(management: ModelLoader, caller: str) -> None:
            document = config_parameter({"config": config or None})
            management.load(caller, model_name, document, file_parameters(files or {}, bytes_parameter))

        self._call(load)

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        """Unload a model; its pending requests are completed."""
        self._call(lambda management, caller: management.unload(caller, model_name, unload_dependents))

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        written = str(model_version)
        if written and not written.isdecimal():
            raise TritonModelException(f"model_version = {model_version!r}, must be a number in quotes, or empty")
        version = int(written) if written else NEWEST
        return self._call(lambda management, _: management.ready(model_name, version))

    def _call(self, work: Callable[[ModelLoader, str], T]) -> T:
        """Run `work`; raise the server's errors as TritonModelException."""
        if self._caller is None or self._caller.calls is None:
            raise TritonModelException("models can be loaded only by a model.py that a server has loaded")
        try:
            return work(self._caller.calls.management, self._caller.caller.name)
        except PredictorError as error:
            raise TritonModelException(str(error)) from None


class MetricFamily:
    """Metrics of one name with different labels. `bls` is the loaded model that creates them."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    bls: BlsCaller | None = None

    def __init__(self, name: str, description: str, kind: int) -> None:
        if self.bls is None or self.bls.calls is None:
            raise TritonModelException("metrics can be made only by a model.py that a server has loaded")
        if kind not in range(len(KINDS)):
            raise TritonModelException(f"kind = {kind!r}, must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._custom = self.bls.calls.custom_metrics
        try:
            self._family = self._custom.family(name, KINDS[kind], description)
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> "Metric":  # noqa: N802 - Triton's name
        bounds = _bounds(self._family, buckets)
        try:
            return Metric(self._custom.series(self.bls, self._family, labels or {}, bounds))
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None


class Metric:
    """One metric, exported while the model references it."""

    def __init__(self, series: "CustomSeries") -> None:
        self._series = series

    def increment(self, value: float) -> None:
        self._require_kind("counter", "gauge")
        if self._series.family.kind == "counter" and value < 0:
            raise TritonModelException(f"counter {self._series.family.name} cannot decrease, got {value}")
        self._series.add(_number(value))

    def set(self, value: float) -> None:
        self._require_kind("gauge")
        self._series.set(_number(value))

    def observe(self, value: float) -> None:
        self._require_kind("histogram")
        self._series.observe(_number(value))

    def value(self) -> float:
        self._require_kind("counter", "gauge")
        return self._series.value

    def _require_kind(self, *kinds: "MetricKind") -> None:
        family = self._series.family
        if family.kind not in kinds:
            raise TritonModelException(f"metric {family.name} is a {family.kind}; this is for a {' or a '.join(kinds)}")


def _bounds(family: "CustomFamily", buckets: Sequence[float] | None) -> tuple[float, ...]:
    if family.kind != "histogram":
        if buckets is not None:
            raise TritonModelException(f"metric {family.name} is a {family.kind}, which has no buckets")
        return ()
    bounds = tuple(_number(bound) for bound in buckets or ())
    if not bounds or list(bounds) != sorted(set(bounds)):
        raise TritonModelException(f"histogram {family.name} needs increasing buckets, such as [0.1, 1.0, 10.0]")
    return bounds


def _number(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise TritonModelException(f"a metric got {value}, must be a finite number")
    return number


_unloaded = ModelManagement()
load_model, unload_model, is_model_ready = _unloaded.load_model, _unloaded.unload_model, _unloaded.is_model_ready
__all__ = [
    "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "TRITONSERVER_RESPONSE_COMPLETE_FINAL", "InferenceRequest",
    "InferenceResponse", "InferenceResponseSender", "InferenceTrace", "Logger", "Metric", "MetricFamily",
    "ModelConfig", "PreferredMemory", "ResponseSender", "Tensor", "TritonError", "TritonModelException",
    "deserialize_bytes_tensor", "get_input_config_by_name", "get_input_tensor_by_name", "get_model_dir",
    "get_output_config_by_name", "get_output_tensor_by_name", "is_model_ready", "load_model", "numpy_to_triton_type",
    "serialize_byte_tensor", "triton_string_to_numpy", "triton_to_numpy_type", "unload_model",
    "using_decoupled_model_transaction_policy",
]  # fmt: skip


class Logger:
    """pb_utils.Logger, writing to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG
    _log = logging.getLogger("pilotlight.model")

    @classmethod
    def log(cls, message: str, level: int = logging.INFO) -> None:
        cls._log.log(level, "%s", message)

    log_info = partialmethod(log, level=INFO)
    log_warn = partialmethod(log, level=WARNING)
    log_error = partialmethod(log, level=ERROR)
    log_verbose = partialmethod(log, level=VERBOSE)


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
    encoded, strings, start = memoryview(encoded_tensor), [], 0
    while start < len(encoded):
        (length,) = struct.unpack_from("<I", encoded, start)
        start += 4 + length
        strings.append(bytes(encoded[start - length : start]))
    return np.array(strings, dtype=np.object_)


def create_module(spec: LoadSpec) -> tuple[ModuleType, BlsCaller]:
    """Create the pb_utils module of one model, and its BlsCaller."""
    caller = BlsCaller(spec)
    module, management = ModuleType(NAME, __doc__), ModelManagement(caller)
    module.__dict__.update({name: globals()[name] for name in __all__})
    for kind in (InferenceRequest, MetricFamily):
        module.__dict__[kind.__name__] = type(kind.__name__, (kind,), {"bls": caller})
    for name in ("load_model", "unload_model", "is_model_ready"):
        module.__dict__[name] = getattr(management, name)
    module.__dict__["get_model_dir"] = lambda: str(spec.path.parent)
    return module, caller
