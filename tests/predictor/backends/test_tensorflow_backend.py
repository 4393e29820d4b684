"""SavedModels and frozen graphs; skipped where the tensorflow extra is not installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight_predictor.backends import tensorflow
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, bf16_from_float, bf16_to_float, tensor
from pilotlight_predictor.errors import BadRequest, LoadFailed

tf = pytest.importorskip("tensorflow")
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Net(tf.Module):
        def __init__(self) -> None:
            self.weight = tf.Variable(tf.ones((4, 2)))

        @tf.function(
            input_signature=[
                tf.TensorSpec((None, 4), tf.float32, "x"),
                tf.TensorSpec((None,), tf.string, "name"),
                tf.TensorSpec((None, 1), tf.bfloat16, "scale"),
            ]
        )
        def serve(self, x: Any, name: Any, scale: Any) -> Any:
            y = tf.matmul(x, self.weight)
            return {"y": y, "hello": tf.strings.join(["hello ", name]), "scaled": tf.cast(y, tf.bfloat16) * scale}

    path = tmp_path_factory.mktemp("tf") / "model.savedmodel"
    net = Net()
    tf.saved_model.save(net, str(path), signatures={"serving_default": net.serve})
    return path


def test_a_saved_model_declares_its_tensors_and_answers(saved: Path, spec: Any) -> None:
    instance = tensorflow.load(spec(saved)).clone()
    assert sorted(instance.inputs) == [
        TensorSpec("name", "BYTES", (-1,)),
        TensorSpec("scale", "BF16", (-1, 1)),
        TensorSpec("x", "FP32", (-1, 4)),
    ]
    assert {output.name: output.datatype for output in instance.outputs} == {
        "y": "FP32", "hello": "BYTES", "scaled": "BF16",
    }  # fmt: skip
    names = np.array([b"ann", b"\xff"], dtype=object)
    scale = Tensor("BF16", bf16_from_float(np.full((2, 1), 2, np.float32)))
    outputs = instance.run({"x": tensor(X), "name": tensor(names), "scale": scale})
    expected = X @ np.ones((4, 2), np.float32)
    np.testing.assert_allclose(outputs["y"].array, expected)
    assert outputs["hello"].array.tolist() == [b"hello ann", b"hello \xff"]
    np.testing.assert_allclose(bf16_to_float(outputs["scaled"].array), expected * 2)


def test_a_shape_that_does_not_fit_is_the_clients_fault(saved: Path, spec: Any) -> None:
    inputs = {"x": tensor(np.ones((2, 5), np.float32)), "name": tensor(np.array([b"a", b"b"], dtype=object))}
    with pytest.raises(BadRequest, match="the model rejects the input"):
        tensorflow.load(spec(saved)).run({**inputs, "scale": Tensor("BF16", np.ones((2, 1), "<u2"))})


def test_a_signature_that_is_not_there_is_told(saved: Path, spec: Any, config: Any) -> None:
    with pytest.raises(LoadFailed, match=r"TF_SIGNATURE_DEF = other, but model\.savedmodel has .* serving_default"):
        tensorflow.load(spec(saved, config(parameters={"TF_SIGNATURE_DEF": "other"})))


def test_a_directory_that_is_no_saved_model_is_told(tmp_path: Path, spec: Any) -> None:
    with pytest.raises(LoadFailed, match="is not a readable SavedModel"):
        tensorflow.load(spec(tmp_path))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), "x")
        tf.identity(x * 2.0, "y")
    path = tmp_path_factory.mktemp("tf") / "model.graphdef"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_a_frozen_graph_answers_by_the_configured_names(frozen: Path, spec: Any, config: Any) -> None:
    instance = tensorflow.load(spec(frozen, config({"x": ("FP32", (-1, 4))}, {"y": ("FP32", (-1, 4))})))
    assert instance.inputs == [TensorSpec("x", "FP32", (-1, 4))]
    np.testing.assert_allclose(instance.run({"x": tensor(X)})["y"].array, X * 2)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [({}, "a graphdef needs input and output"), ({"no": ("FP32", (1,))}, "names a tensor that model.graphdef has not")],
)
def test_a_frozen_graph_needs_its_tensors_named(
    frozen: Path, spec: Any, config: Any, inputs: Any, message: str
) -> None:
    with pytest.raises(LoadFailed, match=message):
        tensorflow.load(spec(frozen, config(inputs, {"y": ("FP32", (1,))})))


def test_a_file_that_is_no_graph_is_told(tmp_path: Path, spec: Any, config: Any) -> None:
    path = tmp_path / "model.graphdef"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(LoadFailed, match=r"model\.graphdef is not a frozen GraphDef"):
        tensorflow.load(spec(path, config({"x": ("FP32", (1,))}, {"y": ("FP32", (1,))})))
