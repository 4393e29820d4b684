"""The binary extension: lengths that lie, raw requests, and tensors that are never copied on the way in."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from tests.serving import RunningServer, binary_body, bytes_blob

from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.core.tensors import Tensor, TensorSpec
from pilotlight_predictor.frontends.http.fast_protocol import FastHttpProtocol
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.protocols.v2.request_codec import decode_raw_request, decode_request
from pilotlight_predictor.protocols.v2.response_codec import encode_response


def tensor(datatype: str = "FP32", shape: tuple[int, ...] = (2,), size: Any = 8, name: str = "x") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "parameters": {"binary_data_size": size}}


@pytest.mark.parametrize(
    ("described", "blob", "words"),
    [
        (tensor(), b"\0" * 7, "unexpected size for input 'x', expecting 1 additional bytes"),
        (tensor(), b"", "expecting 8 additional bytes"),
        (tensor(), b"\0" * 9, "unexpected additional input data for model 'identity_fp32': 1 bytes"),
        (tensor(size=4), b"\0" * 4, "shape [2] of FP32 takes 8 bytes, got 4"),
        (tensor(size=12), b"\0" * 12, "takes 8 bytes, got 12"),
        (tensor(size=-8), b"\0" * 8, "binary_data_size of 0 or more"),
        (tensor(size="8"), b"\0" * 8, "binary_data_size of 0 or more"),
        (tensor(size=8.0), b"\0" * 8, "binary_data_size of 0 or more"),
        (tensor(size=True), b"\0", "binary_data_size of 0 or more"),
        (tensor(size=10**20), b"\0" * 8, "additional bytes"),
        (tensor(shape=(1 << 31,)), b"\0" * 8, "inputs[0].shape"),
        (tensor(shape=((1 << 31) - 1,) * 64), b"\0" * 8, "unexpected size for input 'x'"),
        (tensor(shape=(0, *((1 << 31) - 1,) * 3), size=0), b"", "too large"),
        (tensor("BYTES", (0, *((1 << 31) - 1,) * 3), size=0), b"", "too large"),
        (tensor("BYTES", (1,), 3), b"\1\0\0", "the 4-byte length at byte 0 is cut off"),
        (tensor("BYTES", (1,), 5), b"\2\0\0\0a", "element 0 claims 2 bytes, 1 are left"),
        (tensor("BYTES", (1,), 4), b"\xff\xff\xff\xff", "claims 4294967295 bytes, 0 are left"),
        (tensor("BYTES", (2,), 5), bytes_blob(b"a"), "takes 2 elements, the data has 1"),
        (tensor("BYTES", (1,), 10), bytes_blob(b"a", b"b"), "takes 1 elements, the data has more than 1"),
        (tensor("BYTES", (), 0), b"", "takes 1 elements, the data has 0"),
    ],
)
def test_lengths_that_lie_are_refused(server: RunningServer, described: Any, blob: bytes, words: str) -> None:
    body, headers = binary_body({"inputs": [described]}, blob)
    answer = server.infer("identity_fp32", body, headers)
    assert answer.status == 400
    assert words in answer.error


@pytest.mark.parametrize(
    ("value", "words"),
    [("99999999999", "inference header size should be in range"), ("9" * 40, "must be the number of bytes"),
     ("-1", "must be the number"), ("1.5", "must be the number"), ("x", "must be the number"), ("0x10", "must be"),
     ("", "must be the number"), ("12, 12", "must be the number"), ("5", "not valid JSON"), ("\xb2", "must be")],
)  # fmt: skip
def test_the_length_of_the_header_is_a_number_within_the_body(server: RunningServer, value: str, words: str) -> None:
    body, _ = binary_body({"inputs": [tensor()]}, b"\0" * 8)
    for full in (False, True):
        answer = server.infer("identity_fp32", body, {"Inference-Header-Content-Length": value}, full=full)
        assert answer.status == 400
        assert words in answer.error


RAW = {"Inference-Header-Content-Length": "0"}


def test_a_raw_request_is_one_tensor_of_as_many_elements_as_it_has_bytes_for(server: RunningServer) -> None:
    blob = np.arange(5, dtype="<f4").tobytes()
    answer = server.infer("identity_fp32", blob, RAW)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [5]
    assert answer.body[length:] == blob


def test_a_raw_request_is_a_batch_of_one(server: RunningServer) -> None:
    blob = np.arange(3 * 224 * 224, dtype="<f4").tobytes()
    answer = server.infer("image", blob, RAW)
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [1, 3, 224, 224]
    assert answer.body[length:] == blob


def test_a_raw_request_of_bytes_is_one_element(server: RunningServer) -> None:
    answer = server.infer("echo", b"\xff\x00binary", RAW)
    assert answer.body.endswith(bytes_blob(b"\xff\x00binary"))
    assert server.infer("echo", b"", RAW).status == 200


@pytest.mark.parametrize(
    ("model", "blob", "words"),
    [
        ("identity_fp32", b"\0" * 5, "takes 4 bytes, got 5"),
        ("image", b"\0" * 4, "takes 602112 bytes, got 4"),
        ("matrix", b"\0" * 4, "at most one variable dimension"),
        ("add_sub", b"\0" * 16, "needs a model with one input; 'add_sub' has 2"),
        ("scalar", b"\0" * 8, "takes 4 bytes, got 8"),
    ],
)
def test_a_raw_request_that_cannot_be_read_is_refused(
    server: RunningServer, model: str, blob: bytes, words: str
) -> None:
    answer = server.infer(model, blob, RAW)
    assert (answer.status, words in answer.error) == (400, True)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_binary_tensors_are_views_of_the_request(kind: Any) -> None:
    values = np.arange(1000, dtype="<f4")
    described = tensor(shape=(10, 100), size=values.nbytes)
    body = kind(binary_body({"inputs": [described]}, values.tobytes())[0])
    length = len(body) - values.nbytes
    for request in (
        decode_request("m", 1, body, length),
        decode_raw_request("m", 1, kind(values.tobytes()), TensorSpec("x", "FP32", (-1, 100))),
    ):
        np.testing.assert_array_equal(request.inputs["x"].array, values.reshape(10, 100))
        assert request.inputs["x"].array.base is not None
    decoded = decode_request("m", 1, body, length).inputs["x"].array
    assert np.shares_memory(decoded, np.frombuffer(body, np.uint8))


def test_binary_outputs_are_views_of_the_tensors_and_stay_apart() -> None:
    arrays = [np.arange(10_000, dtype="<f4"), np.arange(6, dtype="<i8").reshape(2, 3)]
    outputs = {"a": Tensor("FP32", arrays[0]), "b": Tensor("INT64", arrays[1])}
    length, pieces = encode_response(InferRequest("m", {}, binary_output=True), InferResponse("m", 1, outputs))
    assert length == len(pieces[0])
    for piece, array in zip(pieces[1:], arrays, strict=True):
        assert np.shares_memory(np.frombuffer(piece, np.uint8), array)


class Wire(asyncio.Transport):
    """Keeps what the fast lane writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[Any] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, pieces: Any) -> None:
        self.written.extend(pieces)


class OneAnswer:
    """A connection owner whose only route answers with the given pieces."""

    def __init__(self, pieces: list[Any]) -> None:
        self.connections: set[FastHttpProtocol] = set()
        self.last_active: FastHttpProtocol | None = None
        self.closing = False
        self._pieces = pieces

    def match(self, method: str, path: str) -> Any:
        return self

    def admits(self, head: Any, peer: str, match: Any) -> bool:
        return True

    def recheck(self, match: Any) -> bool:
        return False

    def reserve(self, length: int) -> int:
        return 0

    def release(self, length: int) -> None: ...

    def switch_to_aiohttp(self, lane: FastHttpProtocol) -> None: ...

    def serve(self, call: HttpRequest, match: Any) -> None:
        call.finish(HttpResponse(200, self._pieces))


def test_a_large_tensor_reaches_the_socket_without_being_joined_to_its_head() -> None:
    array = np.arange(100_000, dtype="<f4")
    response = InferResponse("m", 1, {"y": Tensor("FP32", array)})
    _, pieces = encode_response(InferRequest("m", {}, binary_output=True), response)
    wire, lane = Wire(), FastHttpProtocol(OneAnswer(pieces))
    lane.connection_made(wire)
    lane.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert np.shares_memory(np.frombuffer(wire.written[-1], np.uint8), array)
    assert b"".join(wire.written).endswith(array.tobytes())


def test_an_output_that_is_not_contiguous_is_written_row_by_row() -> None:
    array = np.arange(6, dtype="<i4").reshape(2, 3).T
    response = InferResponse("m", 1, {"y": Tensor("INT32", array)})
    _, (_, blob) = encode_response(InferRequest("m", {}, binary_output=True), response)
    assert np.frombuffer(blob, "<i4").tolist() == [0, 3, 1, 4, 2, 5]
    _, (text,) = encode_response(InferRequest("m", {}), response)
    assert json.loads(bytes(text))["outputs"][0]["data"] == [0, 3, 1, 4, 2, 5]
