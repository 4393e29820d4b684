"""ONNX models on onnxruntime, on the CPU or by the CUDA provider.

Sessions are safe to call from several threads, so the clones of an instance share one session and its weights.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.protobuf import MalformedMessage
from pilotlight_predictor.backends.base import LoadSpec, TensorInstance
from pilotlight_predictor.backends.onnx_zipmap import without_zipmap
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Tensor, TensorSpec, element_count, objects, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.observability.logs import log

_DATATYPES: Final = {
    "tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16",
    "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32", "tensor(int64)": "INT64",
    "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32", "tensor(uint64)": "UINT64",
    "tensor(bool)": "BOOL", "tensor(string)": "BYTES",
}  # fmt: skip
CUDA: Final = "CUDAExecutionProvider"
# Parameters of a configuration, by the names that Triton and onnxruntime have for them.
THREADS: Final = "intra_op_thread_count"
SPINNING: Final = "session.intra_op.allow_spinning"
_BF16_ONNX: Final = 16  # TensorProto.BFLOAT16
_IR_VERSION: Final = r"Unsupported model IR version: \d+, max supported IR version: (\d+)"
_NO_WEIGHTS: Final = r'External data path does not exist: "(?:.*/)?([^"]+)"'
_DOUBLE_ZIPMAP: Final = r"tensor\(double\).*ZipMap|ZipMap.*tensor\(double\)"
_SOURCE: Final = r"failed:/\S+:\d+ .*?\) (?=[A-Z])"  # file, line and signature of the C++ function that failed
_MISFIT: Final = r"(?is)while running \w+ node.*(broadcast|dimension|shape|axis|out of|unknown category)"


class OnnxInstance(TensorInstance):
    quick = True

    def __init__(self, session: Any, quick: bool, labels: Mapping[str, Sequence[str]]) -> None:
        self._session = session
        self.quick, self.labels = quick, labels
        self.inputs, self.outputs = inputs, outputs = _specs(session.get_inputs()), _specs(session.get_outputs())
        self._names = [spec.name for spec in outputs]
        self._types = [spec.datatype for spec in outputs]
        self._plain = all(spec.datatype not in {"BYTES", "BF16"} for spec in (*inputs, *outputs))
        # The native `run` of a CPU session skips checks that cost as much as a small model takes. GPU sessions keep the
        # public one, which can fall back to another provider.
        self._run = getattr(getattr(session, "_sess", None), "run", session.run) if quick else session.run

    def run(self, inputs: Inputs) -> Outputs:
        try:
            if self._plain:
                arrays = self._run(self._names, {name: tensor.array for name, tensor in inputs.items()}, None)
                return {n: Tensor(t, a) for n, t, a in zip(self._names, self._types, arrays, strict=True)}
            # Strings as str, or bfloat16 as OrtValues, which cannot hold strings.
            run = self._session.run_with_ort_values if "BF16" in self._types else self._session.run
            results = run(self._names, {name: _value(tensor) for name, tensor in inputs.items()})
            return {n: _tensor(t, r) for n, t, r in zip(self._names, self._types, results, strict=True)}
        except Exception as error:
            raise _client_error(error) or error from None

    def clone(self) -> "OnnxInstance":
        return OnnxInstance(self._session, self.quick, self.labels)

    def close(self) -> None:
        del self._session, self._run


def prepare() -> None:
    _import()


def load(spec: LoadSpec) -> OnnxInstance:
    if spec.precision in {"fp16", "bf16"}:
        message = f"precision = {spec.precision} has no effect on the ONNX model '{spec.config.name}': export it so"
        log("precision.unused", message, level="WARNING", model=spec.config.name)
    runtime = _import()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = spec.threads or _number(spec, THREADS)
    # Threads do not spin by default: each would use 40 ms of CPU after every run and its start.
    options.add_session_config_entry(SPINNING, str(_number(spec, SPINNING, most=1)))
    options.log_severity_level = 4  # failures are raised and logged by us
    session, labels = _session(runtime, spec, options)
    return OnnxInstance(session, spec.device.kind == "cpu", labels)


def _import() -> Any:
    """Import onnxruntime with telemetry off, unless it is enabled: its import starts the thread that sends it."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise LoadFailed(f"ONNX models need the onnx (CPU) or gpu extra: {install_command('onnx')} ({error})") from None
    return onnxruntime


def _number(spec: LoadSpec, name: str, most: int = 4096) -> int:
    """An integer parameter of the model's configuration; 0 if absent."""
    text = spec.config.parameters.get(name, "0")
    if not text.isdecimal() or int(text) > most:
        raise LoadFailed(f"{spec.config.name}: parameters {name} = {text!r}, must be a whole number from 0 to {most}")
    return int(text)


def _session(runtime: Any, spec: LoadSpec, options: Any) -> tuple[Any, Mapping[str, Sequence[str]]]:
    """Return the session, and the class labels of a classifier's probabilities by output."""
    labels: Mapping[str, Sequence[str]] = {}
    try:
        session = runtime.InferenceSession(str(spec.path), options, providers=_providers(runtime, spec))
        if any(node.type.startswith("seq(map(") for node in session.get_outputs()):
            model, labels = without_zipmap(spec.path.read_bytes())
            session = runtime.InferenceSession(model, options, providers=_providers(runtime, spec))
    except MalformedMessage:
        pass  # of another format, such as .ort: its output is refused by name
    except Exception as error:
        reason = _load_reason(error)
        if re.search(_DOUBLE_ZIPMAP, reason):
            problem = f"{spec.path.name} has a ZipMap of float64 probabilities, which onnxruntime does not load"
            fix = 'export it for float32 columns, or by skl2onnx with options={"zipmap": False}'
            raise LoadFailed(f"{problem}: {fix}") from None
        raise LoadFailed(f"{spec.path.name} is not an ONNX model that onnxruntime can load: {reason}") from None
    if spec.device.kind != "cpu" and CUDA not in session.get_providers():
        reason = f"this onnxruntime has no CUDA provider; install the gpu extra: {install_command('gpu')}"
        if CUDA in runtime.get_available_providers():
            reason = "the CUDA provider could not start; it needs the CUDA and cuDNN libraries that it was built for"
        message = f"model '{spec.config.name}' requests {spec.device} but runs on the CPU: {reason}"
        log("device.missing", message, level="WARNING", model=spec.config.name)
    return session, labels


def _load_reason(error: Exception) -> str:
    """Return onnxruntime's message as one line without its source code, with the fix of a version that is too new."""
    reason = re.sub(_SOURCE, "failed: ", " ".join(str(error).split()))
    if weights := re.search(_NO_WEIGHTS, reason):
        return f"its weights are in {weights[1]}, which is missing beside it; keep both files in one folder"
    if newest := re.search(_IR_VERSION, reason):
        version = newest.group(1)
        reason += f"; set model.ir_version = {version} (onnx.helper.make_model(..., ir_version={version}))"
    return reason


def _providers(runtime: Any, spec: LoadSpec) -> list[Any]:
    if spec.device.kind == "cpu" or CUDA not in runtime.get_available_providers():
        return ["CPUExecutionProvider"]
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    return [(CUDA, {"device_id": spec.device.index}), "CPUExecutionProvider"]


def _specs(nodes: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """Specs with -1 for dynamic dimensions, which onnxruntime gives as names or None."""
    specs = []
    for node in nodes:
        if node.type not in _DATATYPES:
            why = f"tensor '{node.name}' is a {node.type}, which has no V2 datatype"
            raise LoadFailed(f"{why}; export the model with tensors only (skl2onnx: options zipmap=False)")
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        specs.append(TensorSpec(node.name, _DATATYPES[node.type], shape))
    return tuple(specs)


def _value(source: Tensor) -> Any:
    from onnxruntime import OrtValue

    datatype, array = source
    if datatype == "BF16":
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BF16_ONNX)
    if datatype == "BYTES":
        return objects([item.decode() for item in array.ravel()], array.shape)
    return OrtValue.ortvalue_from_numpy(array)


def _tensor(datatype: str, value: Any) -> Tensor:
    if datatype == "BF16":
        return Tensor(datatype, _bits(value))
    array = value.numpy() if hasattr(value, "numpy") else value
    return tensor(array) if datatype == "BYTES" else Tensor(datatype, array)


def _bits(value: Any) -> Array:
    """Copy the bits of a bfloat16 value, which onnxruntime cannot convert to numpy."""
    from ctypes import string_at

    import numpy as np

    shape = tuple(value.shape())
    count = element_count(shape)
    raw = string_at(value.data_ptr(), 2 * count) if count else b""
    return np.frombuffer(raw, NUMPY_TYPES["BF16"]).reshape(shape)


def _client_error(error: Exception) -> BadRequest | None:
    """Return a BadRequest if the input does not fit the graph; None for other failures.

    onnxruntime raises InvalidArgument for that, or a failure in an operator, recognisable by its text only, if dynamic
    sizes do not fit together or an encoder does not know a value.
    """
    if isinstance(error, UnicodeDecodeError):
        return BadRequest("a BYTES input is not UTF-8, which ONNX strings must be")
    text = str(error)
    if type(error).__name__ == "InvalidArgument" or "INVALID_ARGUMENT" in text or re.search(_MISFIT, text):
        reason = text.rpartition(" : ")[2].strip().splitlines()
        return BadRequest(f"the model rejects the input: {reason[0] if reason else 'invalid argument'}")
    return None
