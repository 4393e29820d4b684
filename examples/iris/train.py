"""Trains the iris classifier and writes it as model.onnx: softmax regression on the 150 flowers of iris.csv.

Full-batch Newton steps on a small convex problem in float64: a few steps reach the optimum, which does not depend on
a seed and which every machine reaches to within rounding. Standardisation is folded into the weights, so a client
sends centimetres.

    python examples/iris/train.py [OUTPUT]
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SPECIES = ("setosa", "versicolor", "virginica")
RIDGE = 0.05  # keeps the optimum finite: setosa is linearly separable from the others
STEPS = 20

Array = np.ndarray[Any, np.dtype[np.float64]]


def read(path: Path = HERE / "iris.csv") -> tuple[Array, Array]:
    """Measurements [150, 4] in centimetres, and the species as one-hot rows [150, 3]."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    x = np.array([[float(value) for value in row[:4]] for row in rows])
    return x, np.eye(len(SPECIES))[[SPECIES.index(row[4]) for row in rows]]


def softmax(logits: Array) -> Array:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def fit(x: Array, y: Array) -> Array:
    """The weights [features, classes] that minimise cross-entropy plus a ridge penalty, by Newton's method."""
    features, classes = x.shape[1], y.shape[1]
    weights = np.zeros((features, classes))
    for _ in range(STEPS):
        p = softmax(x @ weights)
        gradient = x.T @ (p - y) + RIDGE * weights
        curvature = p[:, :, None] * (np.eye(classes) - p[:, None, :])
        hessian = np.einsum("nf,ncd,ng->fcgd", x, curvature, x).reshape(features * classes, -1)
        step = np.linalg.solve(hessian + RIDGE * np.eye(features * classes), gradient.reshape(-1))
        weights -= step.reshape(features, classes)
    return weights


def train() -> tuple[Array, Array]:
    """Weights [4, 3] and bias [3] that apply to centimetres: the standardisation is folded into them."""
    x, y = read()
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    fitted = fit(np.hstack([(x - mean) / deviation, np.ones((len(x), 1))]), y)
    weights = fitted[:4] / deviation[:, None]
    return weights, fitted[4] - mean @ weights


def export(weights: Array, bias: Array) -> bytes:
    """The ONNX file: x FP32 [-1, 4] → y FP32 [-1, 3], opset and IR old enough for any runtime in use."""
    from onnx import TensorProto, checker, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "weights", "bias"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["y"]),
        ],
        "iris",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [
            # Six decimals: the last bits of a solver differ between BLAS builds, the file must not.
            numpy_helper.from_array(weights.round(6).astype(np.float32), "weights"),
            numpy_helper.from_array(bias.round(6).astype(np.float32), "bias"),
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="pilotlight"
    )
    checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def main(output: Path) -> None:
    weights, bias = train()
    output.write_bytes(export(weights, bias))
    x, y = read()
    right = (softmax(x @ weights + bias).argmax(axis=1) == y.argmax(axis=1)).mean()
    print(f"{output}: {right:.1%} of the 150 flowers are classified correctly")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "model.onnx")
