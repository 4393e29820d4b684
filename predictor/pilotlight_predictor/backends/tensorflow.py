"""TensorFlow SavedModels and frozen graphs, with the tensorflow extra.

Each becomes one function from named tensors to named tensors, which is thread-safe, so clones share it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pilotlight_predictor.backends.base import LoadSpec, TensorInstance, first_line, import_library
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Tensor, TensorSpec, tensor
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed

Function = Callable[..., Mapping[str, Any]]
_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16", "string": "BYTES",
}  # fmt: skip


class TensorFlowInstance(TensorInstance):
    def __init__(
        self, spec: LoadSpec, function: Function, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        self._spec, self._function = spec, function
        self.inputs, self.outputs = inputs, outputs
        self._device = "/CPU:0" if spec.device.kind == "cpu" else f"/GPU:{spec.device.index}"

    def run(self, inputs: Inputs) -> Outputs:
        import tensorflow as tf

        try:
            with tf.device(self._device):
                results = self._function(**{name: _to_tf(tf, value) for name, value in inputs.items()})
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
            raise BadRequest(f"the model rejects the input: {first_line(error)}") from error
        except tf.errors.OpError as error:
            raise BackendFailed(f"model {self._spec.config.name!r} failed") from error
        arrays = {name: np.asarray(value.numpy()) for name, value in results.items()}
        return {
            name: Tensor("BF16", array.view(NUMPY_TYPES["BF16"])) if array.dtype.name == "bfloat16" else tensor(array)
            for name, array in arrays.items()
        }

    def clone(self) -> "TensorFlowInstance":
        return TensorFlowInstance(self._spec, self._function, self.inputs, self.outputs)


def prepare() -> None:
    _import()


def load(spec: LoadSpec) -> TensorFlowInstance:
    tf = _import()
    if spec.device.kind == "cuda" and len(tf.config.list_physical_devices("GPU")) <= spec.device.index:
        raise LoadFailed(f"device = {spec.device}, but this TensorFlow sees no such GPU: set device: cpu")
    if spec.threads:
        with suppress(RuntimeError):  # TensorFlow is initialised already, with the number of the first model
            tf.config.threading.set_intra_op_parallelism_threads(spec.threads)
    return _saved_model(tf, spec) if spec.path.is_dir() else _graph(tf, spec)


def _import() -> Any:
    return import_library("tensorflow", "tensorflow_savedmodel and tensorflow_graphdef", "tensorflow")


def _saved_model(tf: Any, spec: LoadSpec) -> TensorFlowInstance:
    parameters = spec.config.parameters
    name = parameters.get("TF_SIGNATURE_DEF", "serving_default")
    try:
        model = tf.saved_model.load(str(spec.path), tags=[parameters.get("TF_GRAPH_TAG", "serve")])
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise LoadFailed(f"{spec.path.name} is not a readable SavedModel: {first_line(error)}") from error
    if name not in model.signatures:
        known = ", ".join(model.signatures) or "none"
        raise LoadFailed(f"TF_SIGNATURE_DEF = {name}, but {spec.path.name} has the signatures: {known}")
    function = model.signatures[name]

    def call(**inputs: Any) -> Mapping[str, Any]:
        _ = model  # its variables, which the signature references only weakly
        return function(**inputs)  # type: ignore[no-any-return]

    inputs = [_spec(n, s) for n, s in function.structured_input_signature[1].items()]
    return TensorFlowInstance(spec, call, inputs, [_spec(n, s) for n, s in function.structured_outputs.items()])


def _graph(tf: Any, spec: LoadSpec) -> TensorFlowInstance:
    """Load a frozen graph; its inputs and outputs come from the configuration, since the file does not name them."""
    names = [tensor.name for tensor in spec.config.inputs]
    outputs = [tensor.name for tensor in spec.config.outputs]
    if not names or not outputs:
        raise LoadFailed(f"a graphdef needs input and output in the configuration of {spec.config.name!r}")
    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(spec.path.read_bytes())
    except Exception as error:  # protobuf's DecodeError, in a module that differs by version
        raise LoadFailed(f"{spec.path.name} is not a frozen GraphDef: {error}") from error
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    try:
        feeds = [imported.graph.as_graph_element(_with_port(name)) for name in names]
        fetches = [imported.graph.as_graph_element(_with_port(name)) for name in outputs]
    except (KeyError, ValueError) as error:
        raise LoadFailed(f"the configuration names a tensor that {spec.path.name} does not have: {error}") from error
    pruned = imported.prune(feeds, fetches)

    def call(**inputs: Any) -> Mapping[str, Any]:
        return dict(zip(outputs, pruned(*(inputs[name] for name in names)), strict=True))

    return TensorFlowInstance(spec, call, list(map(_spec, names, feeds)), list(map(_spec, outputs, fetches)))


def _with_port(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _spec(name: str, tensor: Any) -> TensorSpec:
    if tensor.dtype.name not in _DATATYPES:
        raise LoadFailed(f"tensor {name!r} is {tensor.dtype.name}, which has no V2 datatype")
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return TensorSpec(name, _DATATYPES[tensor.dtype.name], tuple(-1 if dim is None else dim for dim in dims))


def _to_tf(tf: Any, value: Tensor) -> Any:
    if value.datatype == "BF16":
        return tf.bitcast(tf.constant(value.array, dtype=tf.uint16), tf.bfloat16)
    if value.datatype == "BYTES":
        return tf.constant(value.array.tolist(), dtype=tf.string, shape=value.array.shape)
    return tf.constant(value.array)
