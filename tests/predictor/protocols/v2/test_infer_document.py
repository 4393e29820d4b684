"""The inference document: its fields, what they may be, and the sentence for each that may not."""

import json
from typing import Any

import pytest
from tests.serving import RunningServer, binary_body, json_tensor

X = json_tensor("x", "FP32", [2], [1, 2])
X_AT = {"name": "x", "datatype": "FP32", "shape": [2]}
SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
A, B = json_tensor("a", "FP32", [1, 4], [1, 2, 3, 4]), json_tensor("b", "FP32", [1, 4], [4, 3, 2, 1])


def test_the_answer_has_its_fields_in_the_order_of_triton(server: RunningServer) -> None:
    answer = server.infer("identity_fp32", {"id": "42", "inputs": [X]}).json()
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", "identity_fp32", "1")


@pytest.mark.parametrize("extra", [{}, {"id": ""}])
def test_an_id_comes_back_only_if_one_was_sent(server: RunningServer, extra: dict[str, Any]) -> None:
    assert "id" not in server.infer("identity_fp32", {"inputs": [X], **extra}).json()


def test_fields_that_nobody_knows_are_passed_over(server: RunningServer) -> None:
    document = {"inputs": [{**X, "comment": [1]}], "later": {"a": None}, "outputs": None, "parameters": None}
    assert server.infer("identity_fp32", document).status == 200


@pytest.mark.parametrize(
    ("outputs", "names"),
    [([], ["sum", "difference"]), (["difference"], ["difference"]), (["difference", "sum"], ["difference", "sum"])],
)
def test_outputs_come_as_they_are_asked_for(server: RunningServer, outputs: list[str], names: list[str]) -> None:
    document = {"inputs": [B, A], "outputs": [{"name": name} for name in outputs]}
    answer = server.infer("add_sub", document).json()
    assert [output["name"] for output in answer["outputs"]] == names
    by_name = {output["name"]: output["data"] for output in answer["outputs"]}
    assert by_name["difference"] == [-3, -1, 1, 3]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "Expected object"),
        ("x", "Expected object"),
        ({}, "missing required field inputs"),
        ({"instances": [[1, 2]]}, "this is a V1 body, V2 needs inputs: […]"),
        ({"inputs": {}}, "inputs: Expected array"),
        ({"inputs": []}, "expected 1 inputs but got 0 inputs for model 'identity_fp32': missing 'x'"),
        ({"inputs": [[]]}, "inputs[0]"),
        ({"inputs": [{}]}, "inputs[0]: Object missing required field name"),
        ({"inputs": [{**X, "name": 1}]}, "inputs[0].name"),
        (
            {"inputs": [{**X, "name": "z"}]},
            "unexpected inference input 'z' for model 'identity_fp32'; its inputs are 'x'",
        ),
        ({"inputs": [X, X]}, "inputs[1].name = 'x' appears twice"),
        ({"inputs": [X, {**X, "name": "z"}]}, "unexpected inference input 'z'"),
        ({"inputs": [{**X, "datatype": "FP33"}]}, "inputs[0].datatype = 'FP33', must be one of BOOL"),
        ({"inputs": [{**X, "datatype": "fp32"}]}, "inputs[0].datatype = 'fp32'"),
        ({"inputs": [{**X, "datatype": "INT32"}]}, "data-type is 'INT32', but model 'identity_fp32' expects 'FP32'"),
        ({"inputs": [{**X, "shape": [-1]}]}, "inputs[0].shape"),
        ({"inputs": [{**X, "shape": "2"}]}, "inputs[0].shape"),
        ({"inputs": [{**X, "shape": [2.0]}]}, "inputs[0].shape[0]"),
        ({"inputs": [{**X, "shape": [[2]]}]}, "inputs[0].shape[0]"),
        ({"inputs": [{**X, "shape": [2, 1]}]}, "unexpected shape for input 'x' for model 'identity_fp32'"),
        ({"inputs": [{**X, "shape": [3]}]}, "inputs['x'].data has 2 elements, shape [3] takes 3"),
        ({"inputs": [{**X, "shape": [1] * 65}]}, "inputs[0].shape has 65 dimensions, the limit is 64"),
        ({"inputs": [{**X, "shape": [16, (1 << 60) + 2]}]}, "inputs[0].shape"),
        ({"inputs": [{**X, "shape": [1 << 80]}]}, "inputs[0].shape"),
        ({"inputs": [{**X, "shape": [0, 1 << 30, 1 << 30, 1 << 30], "data": []}]}, "inputs['x'].shape"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}]}, "neither data nor a binary_data_size"),
        ({"inputs": [{**X, "parameters": []}]}, "inputs[0].parameters"),
        ({"inputs": [{**X, "parameters": {"binary_data_size": 8}}]}, "both data and the parameter binary_data_size"),
        ({"inputs": [X], "outputs": {}}, "outputs"),
        ({"inputs": [X], "outputs": ["y"]}, "outputs[0]"),
        ({"inputs": [X], "outputs": [{"name": "z"}]}, "unexpected inference output 'z' for model 'identity_fp32'"),
        ({"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1].name = 'y' appears twice"),
        ({"inputs": [X], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data = 1"),
        ({"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "classification = -1"),
        ({"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": "1"}}]}, "classification = '1'"),
        ({"inputs": [X], "outputs": [{"name": "y", "parameters": SHARED}]}, "shared memory is not enabled"),
        ({"inputs": [{**X_AT, "parameters": SHARED}]}, "shared memory is not enabled"),
        (
            {"inputs": [X], "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            "outputs[0].parameters.shared_memory_byte_size = None",
        ),
        ({"inputs": [X], "id": 7}, "id: Expected str"),
        ({"inputs": [X], "id": None}, "id: Expected str"),
        ({"inputs": [X], "parameters": [1]}, "parameters: Expected object"),
        ({"inputs": [X], "parameters": {"binary_data_output": "yes"}}, "parameters.binary_data_output = 'yes'"),
        ({"inputs": [X], "parameters": {"priority": -1}}, "parameters.priority = -1"),
        ({"inputs": [X], "parameters": {"priority": "high"}}, "parameters.priority = 'high'"),
        ({"inputs": [X], "parameters": {"timeout": 1.5}}, "parameters.timeout = 1.5"),
        ({"inputs": [X], "parameters": {"timeout": 1 << 64}}, "parameters.timeout"),
        ({"inputs": [X], "parameters": {"timeout": True}}, "parameters.timeout = True"),
        ({"inputs": [X], "parameters": {"triton_enable_empty_final_response": True}}, "is reserved"),
        ({"inputs": [X], "parameters": {"headers": {}}}, "parameters.headers is reserved"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_named(server: RunningServer, document: Any, words: str) -> None:
    answer = server.infer("identity_fp32", document)
    assert answer.status == 400
    assert words in answer.error
    assert "\n" not in answer.error


@pytest.mark.parametrize(
    "text",
    [b"{", b"null", b"\xff\xfe", b'{"inputs":', b"\xef\xbb\xbf{}", b'{"inputs": []} x', b"{'inputs': []}", b"NaN"],
)
def test_what_is_no_json_is_refused(server: RunningServer, text: bytes) -> None:
    answer = server.infer("identity_fp32", text)
    assert answer.status == 400
    assert "the request" in answer.error


def test_an_empty_body_is_called_so(server: RunningServer) -> None:
    answer = server.infer("identity_fp32", b"")
    assert (answer.status, answer.error) == (400, "the body is empty, must be a JSON object with inputs: […]")


@pytest.mark.parametrize("depth", [120, 250_000])
@pytest.mark.parametrize(
    "template",
    [
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": %s1%s}]}',
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": %sNaN%s}]}',
        '{"inputs": [], "unknown": %s1%s}',
        '{"parameters": {"p": %s1%s}, "inputs": []}',
        "%s1%s",
    ],
)
def test_depth_is_refused_and_not_followed(server: RunningServer, template: str, depth: int) -> None:
    assert server.infer("identity_fp32", (template % ("[" * depth, "]" * depth)).encode()).status == 400


def test_sizes_that_the_graph_cannot_join_are_the_clients_mistake(server: RunningServer) -> None:
    inputs = [json_tensor("a", "FP32", [2], [1, 2]), json_tensor("b", "FP32", [3], [1, 2, 3])]
    answer = server.infer("loose", {"inputs": inputs})
    assert answer.status == 400
    assert "the model rejects the input" in answer.error


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (0, "batch dimension must be at least 1"),
        (9, "<= 8 for 'add_sub', input 'a' has 9; send fewer rows, or raise max_batch_size"),
    ],
)
def test_rows_outside_the_batch_size_are_refused(server: RunningServer, rows: int, words: str) -> None:
    tensors = [json_tensor(name, "FP32", [rows, 4], [1] * (4 * rows)) for name in "ab"]
    answer = server.infer("add_sub", {"inputs": tensors})
    assert (answer.status, words in answer.error) == (400, True)


def test_inputs_of_one_request_have_one_number_of_rows(server: RunningServer) -> None:
    tensors = [json_tensor("a", "FP32", [1, 4], [1] * 4), json_tensor("b", "FP32", [2, 4], [1] * 8)]
    answer = server.infer("add_sub", {"inputs": tensors})
    assert (answer.status, "batch size is 1" in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("model", "shape", "expected_shape", "expected"),
    [
        ("add_sub", [2, 4], [2, 2], ["4.000000:0:zero", "3.000000:1:one", "8.000000:3", "7.000000:2:two"]),
        ("plain_add_sub", [2, 4], [2], ["8:7", "7:6"]),
    ],
)
def test_classes_are_value_index_and_label(
    server: RunningServer, model: str, shape: list[int], expected_shape: list[int], expected: list[str]
) -> None:
    datatype = "FP32" if model == "add_sub" else "INT32"
    a, b = json_tensor("a", datatype, shape, [4, 3, 2, 1, 5, 6, 7, 8]), json_tensor("b", datatype, shape, [0] * 8)
    document = {"inputs": [a, b], "outputs": [{"name": "sum", "parameters": {"classification": 2}}]}
    (output,) = server.infer(model, document).json()["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", expected_shape, expected)


def test_more_classes_than_there_are_give_all(server: RunningServer) -> None:
    for count, classes in ((100, 4), (1 << 62, 4), (0, 0)):
        document = {"inputs": [A, B], "outputs": [{"name": "sum", "parameters": {"classification": count}}]}
        (output,) = server.infer("add_sub", document).json()["outputs"]
        assert output["shape"] == [1, classes or 4]
        assert output["datatype"] == ("BYTES" if classes else "FP32")


def test_classes_of_bf16_are_of_its_values(server: RunningServer) -> None:
    inputs = [json_tensor("x", "BF16", [3], [-2.0, 1.5, 0.5])]
    outputs = [{"name": "y", "parameters": {"classification": 3}}]
    (output,) = server.infer("identity_bf16", {"inputs": inputs, "outputs": outputs}).json()["outputs"]
    assert output["data"] == ["1.500000:1", "0.500000:2", "-2.000000:0"]


def test_classes_of_text_are_refused(server: RunningServer) -> None:
    outputs = [{"name": "y", "parameters": {"classification": 1}}]
    inputs = [json_tensor("x", "BYTES", [1], ["a"])]
    answer = server.infer("identity_bytes", {"inputs": inputs, "outputs": outputs})
    assert (answer.status, "classification needs numbers" in answer.error) == (400, True)


def test_parameters_of_no_meaning_here_go_to_the_model_and_priority_and_timeout_are_taken(
    server: RunningServer,
) -> None:
    parameters = {"priority": 1, "timeout": 5_000_000, "mine": "x", "sequence_id": 7}
    assert server.infer("add_sub", {"inputs": [A, B], "parameters": parameters}).status == 200


def test_json_and_binary_tensors_mix(server: RunningServer) -> None:
    import numpy as np

    blob = np.array([4, 3, 2, 1], "<f4").tobytes()
    b = {"name": "b", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    outputs = [{"name": "sum"}, {"name": "difference", "parameters": {"binary_data": True}}]
    body, headers = binary_body({"inputs": [A, b], "outputs": outputs}, blob)
    answer = server.infer("add_sub", body, headers)
    length = int(answer.headers["inference-header-content-length"])
    document = json.loads(answer.body[:length])
    assert document["outputs"][0]["data"] == [5, 5, 5, 5]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 16}
    assert np.frombuffer(answer.body[length:], "<f4").tolist() == [-3, -1, 1, 3]


def test_a_request_may_ask_for_all_outputs_as_binary_and_an_output_may_differ(server: RunningServer) -> None:
    document = {"inputs": [A, B], "parameters": {"binary_data_output": True}}
    answer = server.infer("add_sub", document)
    assert len(answer.body) - int(answer.headers["inference-header-content-length"]) == 32
    document["outputs"] = [{"name": "sum", "parameters": {"binary_data": False}}, {"name": "difference"}]  # type: ignore[assignment]
    answer = server.infer("add_sub", document)
    length = int(answer.headers["inference-header-content-length"])
    assert len(answer.body) - length == 16
    assert json.loads(answer.body[:length])["outputs"][0]["data"] == [5, 5, 5, 5]
