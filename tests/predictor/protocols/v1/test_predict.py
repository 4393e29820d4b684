"""V1's predict against the real server: rows and columns, b64, versions, and every mistake in a sentence."""

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.onnx_models import write_identity
from tests.serving import RunningServer

from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.protocols.v1_codec import decode_predict


def predict(server: RunningServer, model: str, document: Any, **how: Any) -> Any:
    answer = server.post(f"/v1/models/{model}:predict", document, **how)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    return answer.json()["predictions"]


def refused(server: RunningServer, model: str, document: Any, status: int = 400) -> str:
    answer = server.post(f"/v1/models/{model}:predict", document)
    assert answer.status == status, answer.body
    assert list(answer.json()) == ["error"]
    return answer.error


@pytest.mark.parametrize("full", [False, True])
def test_rows_of_a_model_with_one_input_are_stacked_and_answered_in_rows(server: RunningServer, full: bool) -> None:
    assert predict(server, "matrix", {"instances": [[1, 2.5], [3, 4]]}, full=full) == [[1, 2.5], [3, 4]]


def test_an_instance_may_name_its_input(server: RunningServer) -> None:
    assert predict(server, "matrix", {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}) == [[1, 2], [3, 4]]


def test_rows_of_several_inputs_are_objects_both_ways(server: RunningServer) -> None:
    rows = [{"a": [1, 2, 3, 4], "b": [1, 1, 1, 1]}, {"a": [0, 0, 0, 0], "b": [2, 2, 2, 2]}]
    first, second = predict(server, "add_sub", {"instances": rows})
    assert first == {"sum": [2, 3, 4, 5], "difference": [0, 1, 2, 3]}
    assert second == {"sum": [2, 2, 2, 2], "difference": [-2, -2, -2, -2]}


def test_a_row_of_a_table_may_have_scalars_for_its_columns() -> None:
    table = [TensorSpec("age", "FP32", (-1, 1)), TensorSpec("plan", "BYTES", (-1, 1))]

    def decoded(document: Any, specs: Any) -> Any:
        request = decode_predict("m", 1, document, specs, batched=True).request
        return {name: each.array.tolist() for name, each in request.inputs.items()}

    rows = [{"age": 30, "plan": "free"}, {"age": 58, "plan": "pro"}]
    listed = [{name: [value] for name, value in row.items()} for row in rows]
    expected = {"age": [[30], [58]], "plan": [[b"free"], [b"pro"]]}
    assert decoded({"instances": rows}, table) == decoded({"instances": listed}, table) == expected
    assert decoded({"instances": [30, 58]}, table[:1]) == {"age": [[30], [58]]}
    assert decoded({"instances": [30, 58]}, []) == {"": [30, 58]}, "of a Python function with one argument"


def test_columns_are_answered_in_columns(server: RunningServer) -> None:
    columns = {"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]}
    answer = predict(server, "add_sub", {"inputs": columns, "signature_name": "serving_default"})
    assert answer == {"sum": [[2, 3, 4, 5]], "difference": [[0, 1, 2, 3]]}
    assert predict(server, "matrix", {"inputs": [[1, 2]]}) == [[1, 2]]


def test_one_instance_reaches_a_model_that_does_not_batch(server: RunningServer) -> None:
    assert predict(server, "identity_fp32", {"instances": [[1, 2, 3]]}) == [[1, 2, 3]]
    assert "send one instance" in refused(server, "identity_fp32", {"instances": [[1], [2]]})
    assert predict(server, "identity_fp32", {"instances": [1, 2]}) == [1, 2]


def test_an_instance_may_be_a_scalar(server: RunningServer) -> None:
    assert predict(server, "scalar", {"instances": [2.5]}) == [2.5]


def test_bytes_travel_as_text_or_base64(server: RunningServer) -> None:
    blob = {"b64": b64encode(b"\xff\x00").decode()}
    assert predict(server, "echo", {"instances": ["grün", blob]}) == ["grün", blob]
    assert predict(server, "echo", {"instances": [{"x": "a"}, {"x": blob}]}) == ["a", blob]
    assert "not base64" in refused(server, "echo", {"instances": [{"b64": "?"}]})


def test_numbers_that_json_has_no_word_for_go_both_ways(server: RunningServer) -> None:
    body = b'{"instances": [NaN, -Infinity, 1.5, null, "Infinity"]}'
    assert predict(server, "identity_fp32", body) == ["NaN", "-Infinity", 1.5, "NaN", "Infinity"]


@pytest.mark.parametrize("datatype", ["bool", "int8", "uint64", "int64", "fp16", "fp64", "bf16"])
def test_the_datatype_is_what_the_model_declares(server: RunningServer, datatype: str) -> None:
    values = [True, False] if datatype == "bool" else [0, 7]
    assert predict(server, f"identity_{datatype}", {"instances": values}) == values


def test_a_version_may_be_named(server: RunningServer) -> None:
    assert predict(server, "two_versions", {"instances": [1]}) == [-1]
    answer = server.post("/v1/models/two_versions/versions/1:predict", {"instances": [1]})
    assert answer.json() == {"predictions": [1]}
    assert server.post("/v1/models/two_versions/versions/7:predict", {"instances": [1]}).status == 404
    assert server.post("/v1/models/two_versions/versions/x:predict", {"instances": [1]}).status == 400


def test_a_name_may_be_percent_encoded(server: RunningServer) -> None:
    assert predict(server, quote("ümläut & co"), {"instances": [[1, 2]]}) == [[1, 2]]


def test_a_long_document_is_read_and_written(server: RunningServer) -> None:
    rows = [[float(column) for column in range(500)] for _ in range(1000)]
    assert predict(server, "matrix", {"instances": rows}) == rows


@pytest.mark.parametrize(
    ("model", "document", "told"),
    [
        ("matrix", {}, "neither of instances and inputs"),
        ("matrix", {"instances": [[1]], "inputs": [[1]]}, "both of instances and inputs"),
        ("matrix", {"instances": []}, "at least one instance"),
        ("matrix", {"instances": 1}, "at least one instance"),
        ("matrix", {"instances": [[1, 2], [3]]}, "rows differ in length"),
        ("matrix", {"instances": [[1], 2]}, "it mixes values and lists"),
        ("matrix", {"instances": [["a"]]}, "instances has 'a', must be a number for FP32"),
        ("matrix", {"instances": [[1e39]]}, "does not fit FP32"),
        ("matrix", {"instances": [["1"]]}, "must be a number"),
        ("identity_int8", {"instances": [1.5]}, "must be an integer for INT8"),
        ("identity_int8", {"instances": [300]}, "does not fit INT8"),
        ("echo", {"instances": [1]}, "must be text"),
        ("matrix", {"instances": [{"z": 1}]}, "unexpected input 'z' for model 'matrix'; its inputs are 'x'"),
        ("matrix", {"instances": [{"x": [1]}, {"y": [1]}]}, "instances[1] must be an object with the same names"),
        ("add_sub", {"instances": [[1, 2, 3, 4]]}, "each instance must be an object with their names"),
        ("add_sub", {"instances": [{"a": [1, 2, 3, 4]}]}, "missing 'b'"),
        ("add_sub", {"inputs": {"a": [[1]], "b": [[1]]}}, "unexpected shape"),
        ("matrix", [1], "must be a JSON object"),
        ("matrix", b"{", "not valid JSON"),
        ("matrix", b"", "not valid JSON"),
    ],
)
def test_a_mistake_is_a_sentence(server: RunningServer, model: str, document: Any, told: str) -> None:
    assert told in refused(server, model, document)


def test_an_unknown_model_is_not_found_and_a_failure_is_opaque(server: RunningServer) -> None:
    assert "unknown model: 'nobody'" in refused(server, "nobody", {"instances": [1]}, 404)
    told = refused(server, "moody", {"instances": [-1.0]}, 500)
    assert "secret" not in told


def test_only_a_model_that_explains_is_asked_to(server: RunningServer) -> None:
    answer = server.post("/v1/models/matrix:explain", {"instances": [[1]]})
    assert (answer.status, "has no explainer" in answer.error) == (501, True)


def test_models_are_listed_and_say_whether_they_are_ready(server: RunningServer) -> None:
    assert server.get("/").json() == {"status": "alive"}
    assert {"matrix", "add_sub"} <= set(server.get("/v1/models").json()["models"])
    assert server.get("/v1/models/matrix").json() == {"name": "matrix", "ready": True}
    assert server.get("/v1/models/two_versions/versions/2").json() == {"name": "two_versions", "ready": True}
    assert server.get("/v1/models/nobody").status == 404


def test_a_model_that_could_not_be_loaded_is_known_and_not_ready(
    tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    write_identity(tmp_path, "good", "FP32")
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.onnx").write_text("no model")
    server = serve(tmp_path, ready=False)
    server.wait_until(lambda: server.get("/v1/models/good").status == 200, "serving")
    server.wait_until(lambda: "reason" in json.dumps(server.get("/v2/models/bad/ready").json()), "loading")
    answer = server.get("/v1/models/bad")
    assert (answer.status, "model 'bad' is not ready" in answer.error) == (503, True)


def test_python_models_without_inputs_take_text_and_named_values(
    tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    for name, code in {
        "shout": "def predict(text: str) -> str: return text.upper()",
        "mood": "def predict(text: str): return {'label': text[:1], 'score': 0.5}",
        "scaled": "def predict(x, by): return x * by",
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(code)
    server = serve(tmp_path)
    assert predict(server, "shout", {"instances": ["hi"]}) == ["HI"]
    several = refused(server, "shout", {"instances": ["hi", "ho"]})
    assert several.endswith("got [2]; a request has one text: annotate it list[str], or declare it [-1], for several")
    assert predict(server, "mood", {"instances": [{"text": "hi"}]}) == [{"label": "h", "score": 0.5}]
    assert predict(server, "scaled", {"instances": [{"x": 2, "by": 1.5}, {"x": 3, "by": 2}]}) == [3.0, 6.0]
    assert predict(server, "scaled", {"inputs": {"x": [2, 3], "by": [2, 2]}}) == [4, 6]
    assert "declare them (INPUTS in model.py" in refused(server, "scaled", {"instances": [1]})


def test_predictions_are_counted_and_guarded_as_every_inference(
    tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    write_identity(tmp_path, "m", "FP32")
    (tmp_path / "token").write_text("secret")
    server = serve(tmp_path, "--api-token-file", str(tmp_path / "token"))
    assert server.post("/v1/models/m:predict", {"instances": [1]}).status == 401
    token = {"Authorization": "Bearer secret"}
    assert server.post("/v1/models/m:predict", {"instances": [1]}, token).status == 200
    assert server.get("/v1/models").status == 401
    assert server.get("/v1/models/m").status == 200
    metrics = server.get("/metrics", token).body.decode()
    counted = [line for line in metrics.splitlines() if 'protocol="v1"' in line and 'code="200"' in line]
    assert any("_count" in line and line.endswith(" 1") for line in counted), counted
