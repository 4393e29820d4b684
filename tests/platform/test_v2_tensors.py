"""V2 bodies with tensors after the JSON, as Triton and our predictor read and write them."""

import json

import pytest

from pilotlight.contract import HEADER_INFERENCE_LENGTH
from pilotlight.v2_tensors import (
    InputSpec,
    Tensor,
    decode_response,
    encode_request,
    inputs_of,
    pack_bytes,
    required_inputs,
    unpack_bytes,
    with_columns,
)


def test_memory_of_tensors_follows_the_json_in_their_order() -> None:
    inputs = [
        Tensor("a", "UINT8", (2,), b"\1\2"),
        Tensor("b", "FP32", [1], data=[0.5]),
        Tensor("c", "INT8", [1], b"\3"),
    ]
    body, headers = encode_request(inputs, binary_data_output=True)
    document = json.loads(body[: int(headers[HEADER_INFERENCE_LENGTH])])
    assert body.endswith(b"}\1\2\3")
    assert document["inputs"][0] == {
        "name": "a", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2},
    }  # fmt: skip
    assert document["inputs"][1]["data"] == [0.5]
    assert document["parameters"] == {"binary_data_output": True}


def test_a_request_of_json_alone_says_so() -> None:
    body, headers = encode_request([Tensor("b", "FP32", [1], data=[0.5])])
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body) == {"inputs": [{"name": "b", "shape": [1], "datatype": "FP32", "data": [0.5]}]}


def test_outputs_come_from_the_memory_or_from_the_json() -> None:
    outputs = [
        {"name": "a", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [0.5]},
        {"name": "c", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 1}},
    ]
    head = json.dumps({"outputs": outputs}).encode()
    decoded = decode_response({HEADER_INFERENCE_LENGTH: str(len(head))}, head + b"\1\2\3")[1]
    assert [(each.name, each.raw, each.data) for each in decoded] == [
        ("a", b"\1\2", None), ("b", None, [0.5]), ("c", b"\3", None),
    ]  # fmt: skip
    assert decode_response({}, json.dumps({"outputs": outputs[1:2]}).encode())[1][0].data == [0.5]


def test_elements_of_bytes_are_counted() -> None:
    assert pack_bytes([b"ab", b""]) == b"\2\0\0\0ab\0\0\0\0"
    assert unpack_bytes(b"\2\0\0\0ab\0\0\0\0") == [b"ab", b""]


@pytest.mark.parametrize(
    ("head", "memory"),
    [
        (b'{"outputs": 3}', b""),
        (b'{"error": "no"}', b""),
        (b"[]", b""),
        (
            b'{"outputs": [{"name": "a", "datatype": "UINT8", "shape": [9], "parameters": {"binary_data_size": 9}}]}',
            b"1",
        ),
    ],
)
def test_what_is_no_response_is_refused(head: bytes, memory: bytes) -> None:
    with pytest.raises(ValueError, match="the response"):
        decode_response({HEADER_INFERENCE_LENGTH: str(len(head))}, head + memory)


def test_a_shape_fits_as_it_is_or_as_a_batch_of_one() -> None:
    spec = InputSpec("x", "FP32", (-1, 4))
    assert spec.fit((3, 4)) == (3, 4)
    assert spec.fit((4,)) == (1, 4)
    assert spec.fit((3,)) is None
    assert spec.fit((1, 3, 4)) is None
    assert InputSpec("column", "FP32", (-1, 1)).fit((3,)) == (3, 1)


def test_metadata_tells_optional_inputs_and_names_of_columns() -> None:
    text = {"name": "text", "datatype": "BYTES", "shape": [-1]}
    pair = {**text, "name": "pair", "parameters": {"optional": True}}
    assert [each.name for each in required_inputs(inputs_of({"inputs": [text, pair]}))] == ["text"]
    matrix = {"name": "x", "datatype": "FP32", "shape": [-1, 2], "parameters": {"columns": ["a", "b"]}}
    assert [each.name for each in with_columns(inputs_of({"inputs": [matrix]}))] == ["x", "a", "b"]
    assert inputs_of({"inputs": [{**text, "parameters": "of another server"}]}) == inputs_of({"inputs": [text]})
