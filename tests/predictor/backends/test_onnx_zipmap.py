"""Classifiers as skl2onnx exports them by default: label and a ZipMap of probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.serving import RunningServer

from pilotlight_predictor.backends import onnxruntime as backend
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed

ROWS = np.array([[1, 0], [0, 3]], "f4")


def write_classifier(path: Path, labels: list[Any], *, packed: bool = False, onnx_opset: bool = True) -> Path:
    """The graph that skl2onnx makes of a logistic regression: LinearClassifier, Normalizer, ZipMap."""
    numbers = isinstance(labels[0], int)
    kind = {"classlabels_int64s" if numbers else "classlabels_strings": labels}
    classes = {"classlabels_ints" if numbers else "classlabels_strings": labels}
    coefficients = [float(n) for n in range(2 * len(labels))]
    ml = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node(
            "LinearClassifier", ["X"], ["label", "raw"], coefficients=coefficients,
            intercepts=[0.5] * len(labels), post_transform="SOFTMAX", **classes, **ml,
        ),
        helper.make_node("Normalizer", ["raw"], ["probabilities"], norm="L1", **ml),
        helper.make_node("ZipMap", ["probabilities"], ["output_probability"], **kind, **ml),
    ]  # fmt: skip
    opsets = [helper.make_opsetid("ai.onnx.ml", 1)]
    if onnx_opset:
        nodes.insert(1, helper.make_node("Identity", ["label"], ["output_label"]))
        opsets.append(helper.make_opsetid("", 15))
    key = TensorProto.INT64 if numbers else TensorProto.STRING
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    graph = helper.make_graph(
        nodes, "classifier",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])],
        [
            helper.make_tensor_value_info("output_label" if onnx_opset else "label", _element(numbers), [None]),
            helper.make_value_info("output_probability", maps),
        ],
    )  # fmt: skip
    content = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    if packed:  # as proto3 writers encode repeated integers
        content = _packed(content, labels)
    path.write_bytes(content)
    return path


def _element(numbers: bool) -> int:
    return TensorProto.INT64 if numbers else TensorProto.STRING


def _packed(content: bytes, labels: list[int]) -> bytes:
    unpacked = b"".join(b"\x40" + bytes([label]) for label in labels)
    packed = b"\x42" + bytes([len(labels)]) + bytes(labels)
    packed += b"\x62\x00" * ((len(unpacked) - len(packed)) // 2)  # an unknown empty field keeps the lengths
    before, name, after = content.rpartition(b"classlabels_int64s")
    assert unpacked in after
    return before + name + after.replace(unpacked, packed.ljust(len(unpacked)), 1)


@pytest.mark.parametrize("onnx_opset", [True, False], ids=["both opsets", "ai.onnx.ml alone"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [-7, 300, 5], ["setosa", "versicolor", "virginica"]])
def test_probabilities_are_a_tensor_and_equal_those_of_onnxruntime(
    labels: list[Any], onnx_opset: bool, tmp_path: Path, spec: Any, ask: Any
) -> None:
    path = write_classifier(tmp_path / "model.onnx", labels, onnx_opset=onnx_opset)
    instance = backend.load(spec(path))
    label, probabilities = instance.outputs
    assert (label.datatype, label.shape) == ("INT64" if isinstance(labels[0], int) else "BYTES", (-1,))
    assert probabilities == TensorSpec("output_probability", "FP32", (-1, 3))
    assert instance.labels == {"output_probability": [str(each) for each in labels]}
    (answer,) = instance.clone().execute([ask(X=ROWS)])
    import onnxruntime

    maps = onnxruntime.InferenceSession(str(path)).run(["output_probability"], {"X": ROWS})[0]
    assert answer["output_probability"].array.tolist() == [[row[each] for each in labels] for row in maps]


def test_labels_are_read_from_both_encodings_of_protobuf(tmp_path: Path, spec: Any) -> None:
    path = write_classifier(tmp_path / "model.onnx", [3, 4, 5, 6], packed=True)
    assert onnx.load(path).graph.node[-1].attribute[0].ints == [3, 4, 5, 6]
    assert backend.load(spec(path)).labels == {"output_probability": ["3", "4", "5", "6"]}


def test_another_map_is_refused_with_the_option_that_avoids_it(tmp_path: Path, spec: Any) -> None:
    words = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    node = helper.make_node("DictVectorizer", ["words"], ["counts"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    graph = helper.make_graph(
        [node], "words", [helper.make_value_info("words", words)],
        [helper.make_tensor_value_info("counts", TensorProto.FLOAT, [1, 2])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 15)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "model.onnx")
    with pytest.raises(LoadFailed, match=r"tensor 'words' is a map.*zipmap=False"):
        backend.load(spec(tmp_path / "model.onnx"))


def test_clients_see_labels_in_metadata_and_in_classifications(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "wine.onnx", ["red", "rosé", "white"])
    with RunningServer(tmp_path, "--model-path", str(path)) as server:
        _, output = server.get("/v2/models/wine").json()["outputs"]
        shape, labels = [-1, 3], ["red", "rosé", "white"]
        assert output == {
            "name": "output_probability", "datatype": "FP32", "shape": shape, "parameters": {"labels": labels}
        }  # fmt: skip
        data = {"inputs": [{"name": "X", "shape": [2, 2], "datatype": "FP32", "data": ROWS.ravel().tolist()}]}
        wanted = [{"name": "output_probability", "parameters": {"classification": 1}}]
        answer = server.infer("wine", {**data, "outputs": wanted}).json()["outputs"][0]["data"]
        assert [each.split(":")[1:] for each in answer] == [["2", "white"], ["2", "white"]]
        predictions = server.post("/v1/models/wine:predict", {"instances": ROWS.tolist()}).json()["predictions"]
        assert [each["output_label"] for each in predictions] == ["white", "white"]
        assert np.allclose([sum(each["output_probability"]) for each in predictions], 1)


def test_v1_answers_with_labels_that_are_numbers(tmp_path: Path) -> None:
    """ONNX Runtime returns them as `longlong`, which is another type than `int64`."""
    path = write_classifier(tmp_path / "wine.onnx", [0, 1, 2])
    with RunningServer(tmp_path, "--model-path", str(path)) as server:
        answer = server.post("/v1/models/wine:predict", {"instances": ROWS.tolist()})
        assert [each["output_label"] for each in answer.json()["predictions"]] == [2, 2]


def test_float64_probabilities_are_refused_with_the_export_that_works(tmp_path: Path, spec: Any) -> None:
    """As skl2onnx exports a logistic regression for float64 columns."""
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    nodes = [
        helper.make_node("Softmax", ["X"], ["probabilities"]),
        helper.make_node("ZipMap", ["probabilities"], ["p"], classlabels_int64s=[0, 1], domain="ai.onnx.ml"),
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.DOUBLE, [None, 2])]
    graph = helper.make_graph(nodes, "classifier", inputs, [helper.make_value_info("p", maps)])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "lr.onnx")
    fix = (
        r'float64 probabilities, which onnxruntime does not load: export it for float32 .* options=\{"zipmap": False\}$'
    )
    with pytest.raises(LoadFailed, match=fix):
        backend.load(spec(tmp_path / "lr.onnx"))
