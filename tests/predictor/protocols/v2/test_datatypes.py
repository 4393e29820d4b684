"""Every datatype in and out, as JSON and as binary, flat and nested, empty and scalar."""

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.onnx_models import ONNX_TYPES
from tests.serving import RunningServer, binary_body, bytes_blob, json_tensor

NUMPY: dict[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "BYTES": ["", "grüße", "a\nb\0\"c\\"],
    "FP16": [0.5, -65504.0, 6e-8],
    "FP32": [0.1, -3.4e38, 1e-45],
    "FP64": [0.1, -1.7e308, 5e-324],
    "BF16": [0.5, -3.0, 1.0078125],
}  # fmt: skip


def values_of(datatype: str) -> list[Any]:
    """Both ends of an integer's range: they are what a detour over float would lose."""
    if datatype in VALUES:
        return VALUES[datatype]
    return [0, int(np.iinfo(NUMPY[datatype]).min), int(np.iinfo(NUMPY[datatype]).max)]


def raw_of(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return bytes_blob(*(value.encode() for value in values))
    return bytes(np.array(values, NUMPY[datatype]).tobytes())


def read_raw(datatype: str, blob: bytes) -> list[Any]:
    if datatype != "BYTES":
        return list(np.frombuffer(blob, NUMPY[datatype]).tolist())
    items, position = [], 0
    while position < len(blob):
        (length,) = struct.unpack_from("<I", blob, position)
        items.append(blob[position + 4 : position + 4 + length].decode())
        position += 4 + length
    return items


def model_of(datatype: str) -> str:
    return f"identity_{datatype.lower()}"


@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
@pytest.mark.parametrize("binary_out", [False, True], ids=["json-out", "binary-out"])
@pytest.mark.parametrize("binary_in", [False, True], ids=["json-in", "binary-in"])
@pytest.mark.parametrize("datatype", list(ONNX_TYPES))
def test_a_datatype_comes_back_as_it_went(
    server: RunningServer, datatype: str, binary_in: bool, binary_out: bool, full: bool
) -> None:
    values = values_of(datatype)
    sent: dict[str, Any] = {"inputs": [json_tensor("x", datatype, [3], values)]}
    if binary_out:
        sent["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
    body: Any = sent
    headers: dict[str, str] = {}
    if binary_in:
        blob = raw_of(datatype, values)
        tensor = {"name": "x", "datatype": datatype, "shape": [3], "parameters": {"binary_data_size": len(blob)}}
        body, headers = binary_body({**sent, "inputs": [tensor]}, blob)
    answer = server.infer(model_of(datatype), body, headers, full=full)
    assert answer.status == 200, answer.body
    expected = read_raw(datatype, raw_of(datatype, values))
    if not binary_out:
        (output,) = answer.json()["outputs"]
        assert list(output) == ["name", "datatype", "shape", "data"]
        assert output == {"name": "y", "datatype": datatype, "shape": [3], "data": output["data"]}
        got = read_raw(datatype, raw_of(datatype, output["data"]))
    else:
        length = int(answer.headers["inference-header-content-length"])
        output, blob = json.loads(answer.body[:length])["outputs"][0], answer.body[length:]
        assert answer.headers["content-type"] == "application/octet-stream"
        assert list(output) == ["name", "datatype", "shape", "parameters"]
        assert output["parameters"] == {"binary_data_size": len(blob)}
        got = read_raw(datatype, blob)
    assert got == expected


@pytest.mark.parametrize("datatype", list(ONNX_TYPES))
@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_a_tensor_without_elements_is_a_tensor(server: RunningServer, datatype: str, binary: bool) -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": binary}}]
    tensor: dict[str, Any] = json_tensor("x", datatype, [0], [])
    headers: dict[str, str] = {}
    body: Any = {"inputs": [tensor], "outputs": outputs}
    if binary:
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": 0}
        body, headers = binary_body(body)
    answer = server.infer(model_of(datatype), body, headers)
    (output,) = answer.json()["outputs"]
    assert output["shape"] == [0]
    assert output.get("data", []) == []
    assert "inference-header-content-length" not in answer.headers  # nothing follows the JSON
    assert answer.headers["content-type"] == "application/json"


def test_a_scalar_has_an_empty_shape(server: RunningServer) -> None:
    answer = server.infer("scalar", {"inputs": [json_tensor("x", "FP32", [], [2.5])]})
    assert answer.json()["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [], "data": [2.5]}]
    raw, headers = binary_body(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [], "parameters": {"binary_data_size": 4}}]},
        struct.pack("<f", 2.5),
    )
    assert server.infer("scalar", raw, headers).json()["outputs"][0]["data"] == [2.5]


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]], [[1, 2], [3, 4], [5, 6]], [[[[1, 2, 3, 4, 5, 6]]]]]
)
def test_data_may_be_flat_or_nested_and_comes_back_flat(server: RunningServer, data: Any) -> None:
    (output,) = server.infer("matrix", {"inputs": [json_tensor("x", "FP32", [2, 3], data)]}).json()["outputs"]
    assert (output["shape"], output["data"]) == ([2, 3], [1, 2, 3, 4, 5, 6])


def test_strings_may_be_nested(server: RunningServer) -> None:
    answer = server.infer("identity_bytes", {"inputs": [json_tensor("x", "BYTES", [3], [["a", "b"], ["c"]])]})
    assert answer.json()["outputs"][0]["data"] == ["a", "b", "c"]


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("spelling", ["[NaN, Infinity, -Infinity, 1.5]", '["NaN", "Infinity", "-Infinity", 1.5]'])
def test_values_that_are_no_numbers_go_in_and_out(server: RunningServer, datatype: str, spelling: str) -> None:
    tensor = f'{{"name": "x", "datatype": "{datatype}", "shape": [4], "data": {spelling}}}'
    text = f'{{"id": "NaN \\" Infinity", "inputs": [{tensor}]}}'
    answer = server.infer(model_of(datatype), text.encode()).json()
    assert answer["id"] == 'NaN " Infinity'
    assert answer["outputs"][0]["data"] == ["NaN", "Infinity", "-Infinity", 1.5]


def test_null_is_read_as_nan_where_that_is_a_value(server: RunningServer) -> None:
    answer = server.infer("identity_fp32", {"inputs": [json_tensor("x", "FP32", [2], [None, 1.5])]})
    assert answer.json()["outputs"][0]["data"] == ["NaN", 1.5]


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16", "INT8", "UINT64"])
def test_truth_values_are_numbers_in_v2_as_in_v1(server: RunningServer, datatype: str) -> None:
    answer = server.infer(model_of(datatype), {"inputs": [json_tensor("x", datatype, [3], [True, False, 2])]})
    assert answer.json()["outputs"][0]["data"] == [1, 0, 2]
    v1 = server.post(f"/v1/models/{model_of(datatype)}:predict", {"instances": [[True, False, 2]]})
    assert v1.json()["predictions"] in ([1, 0, 2], [[1, 0, 2]])


def test_a_null_among_parameters_is_no_number(server: RunningServer) -> None:
    """Only values of tensors are looked at for what JSON has no word for."""
    answer = server.infer("identity_fp32", {"id": "null", "inputs": [json_tensor("x", "FP32", [1], [1.5])]})
    assert (answer.json()["id"], answer.json()["outputs"][0]["data"]) == ("null", [1.5])


@pytest.mark.parametrize(
    ("datatype", "text", "words"),
    [
        ("FP32", '[NaN, "1.5"]', "inputs['x'].data"),
        ("INT32", "[1, null]", "inputs['x'].data"),
        ("BYTES", '["a", null]', "inputs['x'].data"),
        ("BOOL", "[true, null]", "inputs['x'].data"),
        ("FP32", '["1", 2]', "Expected float, got str"),
        ("INT32", "[NaN, 1]", "inputs['x'].data"),
        ("INT32", "[1.5, 1]", "Expected int, got float"),
        ("INT8", "[128, 1]", "does not fit INT8"),
        ("UINT8", "[-1, 1]", "does not fit UINT8"),
        ("INT64", "[9223372036854775808, 1]", "does not fit INT64"),
        ("UINT64", "[18446744073709551616, 1]", "does not fit UINT64"),
        ("FP16", "[70000, 1]", "does not fit FP16"),
        ("FP32", "[1e39, 1]", "does not fit FP32"),
        ("BF16", "[1e39, 1]", "does not fit BF16"),
        ("FP64", "[1e400, 1]", "out of range"),
        ("INT32", f"[{'9' * 5000}, 1]", "out of range"),
        ("BOOL", "[1, 0]", "Expected bool, got int"),
        ("BYTES", "[1, 2]", "Expected str, got int"),
        ("FP32", "[[1, 2], [3]]", "rows differ"),
        ("FP32", "[1, [2]]", "Expected float, got array"),
        ("FP32", "[1, 2, 3]", "has 3 elements, shape [2] takes 2"),
        ("FP32", "[]", "has 0 elements"),
        ("FP32", "1", "must be an array"),
        ("FP32", "null", "must be an array"),
        ("FP32", '"AAAA"', "must be an array"),
        ("FP32", "{}", "must be an array"),
        ("FP32", "[" * 101 + "]" * 101, "nested deeper than 100 levels"),
    ],
)  # fmt: skip
def test_data_that_is_not_of_its_type_is_refused_by_name(
    server: RunningServer, datatype: str, text: str, words: str
) -> None:
    body = f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": [2], "data": {text}}}]}}'
    answer = server.infer(model_of(datatype), body.encode())
    assert answer.status == 400
    assert words in answer.error
    assert "inputs['x'].data" in answer.error


def test_text_that_is_not_utf8_is_refused_as_json_and_taken_as_binary(server: RunningServer) -> None:
    text = b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\xff"]}]}'
    refused = server.infer("echo", text)
    assert (refused.status, "not UTF-8" in refused.error) == (400, True)
    blob = bytes_blob(b"\xff\x00", b"", b"\xc3")
    tensor = {"name": "x", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(blob)}}
    sent = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    body, headers = binary_body(sent, blob)
    answer = server.infer("echo", body, headers)
    assert answer.body.endswith(blob)
    body, headers = binary_body({"inputs": [tensor]}, blob)
    refused = server.infer("echo", body, headers)
    assert (refused.status, "binary_data: true" in refused.error) == (400, True)
    body, headers = binary_body({"inputs": [tensor]}, blob)
    refused = server.infer("identity_bytes", body, headers)
    assert (refused.status, "UTF-8" in refused.error) == (400, True)


def test_every_byte_but_zero_is_true(server: RunningServer) -> None:
    tensor = {"name": "x", "datatype": "BOOL", "shape": [4], "parameters": {"binary_data_size": 4}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    body, headers = binary_body({"inputs": [tensor], "outputs": outputs}, b"\x00\x01\x02\xff")
    assert server.infer("identity_bool", body, headers).body.endswith(b"\x00\x01\x01\x01")
