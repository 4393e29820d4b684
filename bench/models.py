"""The models every server serves, and the requests that are sent to them. All are made here, nothing is downloaded.

`iris` is a small classifier (4 → 16 → 3), so what is measured is the server and not the arithmetic; `quiet` is the same
graph under another name; `image` reduces a 224×224×3 picture to three means, so what is measured is moving 602 KB;
`wide` takes a row of any length and gives back its first three numbers, so that nothing is left but moving it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

IMAGE_SHAPE = (1, 224, 224, 3)
IRIS_ROW = (5.1, 3.5, 1.4, 0.2)
WIDE_FLOATS = 2_500_000  # 10 MB
MAX_BATCH = 64
NO_ID = "0" * 20  # as long as the ids that request.lua puts in its place


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the benchmark: where its file lies and the shape of one row in and out; -1 is any length."""

    name: str
    path: Path
    row_in: tuple[int, ...]
    row_out: tuple[int, ...] = (3,)


@dataclass(frozen=True, slots=True)
class Payload:
    """One V2 request, ready to be sent, and the numbers that a right answer holds, or what raises for a wrong one."""

    body: bytes
    answer: tuple[float, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[bytes], None] | None = None


def write_models(directory: Path) -> dict[str, Model]:
    """Makes the ONNX files that are missing and returns all models by name."""
    directory.mkdir(parents=True, exist_ok=True)
    models = [
        Model("iris", directory / "iris.onnx", (4,)),
        Model("quiet", directory / "quiet.onnx", (4,)),
        Model("image", directory / "image.onnx", IMAGE_SHAPE[1:]),
        Model("wide", directory / "wide.onnx", (-1,)),
    ]
    made = {"image": _image_model, "wide": _wide_model}
    for model in models:
        if not model.path.exists():
            model.path.write_bytes(made[model.name]() if model.name in made else _iris_model(model.name))
    return {model.name: model for model in models}


def payload_of(model: Model) -> Payload:
    """The request that the cases send to this model."""
    if model.name == "image":
        return image_payload(model)
    return wide_payload(model) if model.name == "wide" else iris_payload(model)


def iris_payload(model: Model, rows: int = 1, numbered: bool = False) -> Payload:
    """Rows as JSON, as most clients send them; request.lua gives each request that is numbered an id of its own."""
    inputs = [{"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": list(IRIS_ROW) * rows}]
    answer = _reference(model, np.array([IRIS_ROW] * rows, np.float32))
    document = {"id": NO_ID, "inputs": inputs} if numbered else {"inputs": inputs}
    return Payload(json.dumps(document).encode(), answer, {"Content-Type": "application/json"})


def image_payload(model: Model) -> Payload:
    return _binary_payload(model, np.random.default_rng(1).random(IMAGE_SHAPE, np.float32))


def wide_payload(model: Model, floats: int = WIDE_FLOATS) -> Payload:
    return _binary_payload(model, np.random.default_rng(1).random((1, floats), np.float32))


def _binary_payload(model: Model, x: np.ndarray[Any, Any]) -> Payload:
    """By the binary tensor extension: a JSON head, then the bytes as they lie in memory."""
    parameters = {"binary_data_size": x.nbytes}
    inputs = [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": parameters}]
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Payload(head + x.tobytes(), _reference(model, x), headers)


def _reference(model: Model, x: np.ndarray[Any, Any]) -> tuple[float, ...]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    return tuple(float(value) for value in session.run(None, {"x": x})[0].ravel())


def _iris_model(name: str) -> bytes:
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "W1": rng.standard_normal((4, 16)).astype(np.float32),
        "b1": np.zeros(16, np.float32),
        "W2": rng.standard_normal((16, 3)).astype(np.float32),
        "b2": np.zeros(3, np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "W2", "b2"], ["o"]),
        helper.make_node("Softmax", ["o"], ["y"]),
    ]
    constants = [numpy_helper.from_array(value, key) for key, value in weights.items()]
    return _serialised(name, nodes, (4,), constants)


def _image_model() -> bytes:
    from onnx import helper

    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2], keepdims=0)]
    return _serialised("image", nodes, IMAGE_SHAPE[1:], [])


def _wide_model() -> bytes:
    from onnx import helper, numpy_helper

    bounds = {"start": 0, "end": 3, "axis": 1}
    constants = [numpy_helper.from_array(np.array([value], np.int64), name) for name, value in bounds.items()]
    return _serialised("wide", [helper.make_node("Slice", ["x", *bounds], ["y"])], ("W",), constants)


def _serialised(name: str, nodes: list[Any], row_in: Sequence[int | str], constants: list[Any]) -> bytes:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *row_in])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(nodes, name, [x], [y], constants)
    opset = helper.make_opsetid("", 17)
    serialised: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    return serialised
