"""What a request may make the server decode: compared with the model first, bounded, and off the event loop."""

import json
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play, write_times

from pilotlight.wire.protobuf import delimited, tag, varint
from pilotlight_predictor.core import protobuf_codec
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Outputs
from pilotlight_predictor.core.tensors import MAX_STRINGS, Tensor, TensorSpec, decode_raw
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.models import model_version
from pilotlight_predictor.models.input_validation import InputValidator
from pilotlight_predictor.protocols import generate, json_values, v1, v1_codec
from pilotlight_predictor.protocols.json_values import MAX_FIELDS, SHORT, check_weight, document_pieces
from pilotlight_predictor.protocols.openai import request as openai
from pilotlight_predictor.protocols.plain_predict import codec as predict_codec
from pilotlight_predictor.protocols.plain_predict import routes as predict
from pilotlight_predictor.protocols.trtis import routes as trtis
from pilotlight_predictor.protocols.v1_codec import DecodedPredict, decode_document, encode_predictions, to_tensor
from pilotlight_predictor.protocols.v2 import infer as v2
from pilotlight_predictor.protocols.v2.grpc.infer_request import decode_infer, is_plain
from pilotlight_predictor.protocols.v2.grpc.infer_response import (
    MAX_TYPED,
    MAX_UNPACKED,
    decode_contents,
    encode_contents,
)
from pilotlight_predictor.protocols.v2.request_codec import decode_request
from pilotlight_predictor.repository.model_config import ModelConfig, TensorConfig

TEXT = TensorSpec("x", "BYTES", (-1,))
MANY = MAX_STRINGS + 1


def binary(datatype: str, shape: list[int], blob: bytes) -> tuple[bytes, int]:
    wire = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(blob)}}
    text = json.dumps({"inputs": [wire]}).encode()
    return text + blob, len(text)


@pytest.mark.parametrize(
    ("datatype", "shape", "problem"),
    [
        ("BYTES", [2, 4], "data-type is 'BYTES', but model 'm' expects 'FP32'"),
        ("FP32", [2, 5], r"expected \[-1, 4\], got \[2, 5\]"),
        ("FP32", [9, 4], "batch-size must be <= 8 for 'm'"),
        ("FP32", [4], r"expected \[-1, 4\], got \[4\]"),
    ],
)
def test_inputs_are_compared_with_the_model_before_elements_are_read(
    datatype: str, shape: list[int], problem: str
) -> None:
    validator = InputValidator(ModelConfig("m", max_batch_size=8, inputs=(TensorConfig("x", "FP32", (4,)),)))
    body, length = binary(datatype, shape, b"\xff\xff\xff")  # cannot be decoded
    with pytest.raises(BadRequest, match=problem):
        decode_request("m", -1, body, length, check=validator.check_input)
    with pytest.raises(BadRequest, match="unexpected inference input 'y' for model 'm'; its inputs are 'x'"):
        validator.check_input("y", "FP32", (1, 4))


@pytest.mark.parametrize(
    "decode",
    [
        lambda: decode_raw("input 'x'", "BYTES", (MANY,), bytes(4 * MANY)),
        lambda: json_values.decode_values("x", "BYTES", (MANY,), msgspec.Raw(b"[%b]" % b",".join([b'""'] * MANY))),
        lambda: to_tensor("instances", "BYTES", [""] * MANY),
        lambda: decode_contents("input 'x'", "BYTES", (MANY,), memoryview(delimited(8, b"") * MANY)),
    ],
    ids=["raw", "V2 JSON", "V1", "gRPC"],
)
def test_strings_are_bounded(decode: Callable[[], Tensor]) -> None:
    with pytest.raises(BadRequest, match=f"has {MANY} elements of BYTES, the limit is {MAX_STRINGS}"):
        decode()


def fields(count: int) -> dict[str, int]:
    return {str(number): number for number in range(count)}


@pytest.mark.parametrize("where", ["inputs", "outputs", "parameters", "inputs[0].parameters"])
def test_named_fields_of_v2_are_bounded(where: str) -> None:
    wire: dict[str, Any] = {"name": "x", "shape": [0], "datatype": "FP32", "data": []}
    document: dict[str, Any] = {"inputs": [wire]}
    if where == "inputs[0].parameters":
        wire["parameters"] = fields(MAX_FIELDS + 1)
    elif where == "parameters":
        document[where] = fields(MAX_FIELDS + 1)
    else:
        document[where] = [{**wire, "name": name} for name in fields(MAX_FIELDS + 1)]
    with pytest.raises(BadRequest, match=f"of length <= {MAX_FIELDS}"):
        decode_request("m", -1, json.dumps(document).encode(), None)
    document[where] = fields(MAX_FIELDS) if where == "parameters" else []
    wire.pop("parameters", None)
    decode_request("m", -1, json.dumps({**document, "inputs": [wire]}).encode(), None)


@pytest.mark.parametrize("nested", [False, True])
def test_fields_of_generate_are_bounded(nested: bool) -> None:
    document: dict[str, Any] = fields(MAX_FIELDS + 1)
    body = json.dumps({"parameters": document} if nested else document).encode()
    with pytest.raises(BadRequest, match=f"more than {MAX_FIELDS} fields"):
        generate.decode_generate("m", -1, body, [TEXT], False)


def test_documents_that_stay_python_objects_are_bounded() -> None:
    check_weight(b"[%b]" % (b"1," * (json_values.MAX_WEIGHT - 4)))
    for item in (b"1,1,1,1,", b"[],", b"{},"):
        body = b'{"instances":[%b1]}' % (item * (json_values.MAX_WEIGHT // 4))
        with pytest.raises(BadRequest, match=f"the limit is {json_values.MAX_WEIGHT}"):
            decode_document("m", -1, body, "predict")
        with pytest.raises(BadRequest, match=f"the limit is {json_values.MAX_WEIGHT}"):
            openai.read_object(body)


def test_chats_and_prompts_are_bounded() -> None:
    part = {"type": "text", "text": ""}
    messages = [{"role": "user", "content": [part] * openai.MAX_PARTS}]
    with pytest.raises(BadField, match=f"more than {openai.MAX_PARTS} messages and parts"):
        openai.read_chat({"messages": messages})
    half = [1] * (openai.MAX_TOKENS // 2 + 1)
    for prompt in (half + half, [half, half]):
        with pytest.raises(BadField, match=f"at most {openai.MAX_TOKENS}"):
            openai.read_completion({"prompt": prompt})


def message(datatype: bytes, contents: bytes = b"", raw: bytes = b"") -> bytes:
    head = delimited(1, b"x") + delimited(2, datatype) + delimited(3, varint(1)) + delimited(5, contents)
    return delimited(1, b"m") + delimited(5, head) + (delimited(7, raw) if raw else b"")


def test_fields_of_grpc_messages_are_bounded() -> None:
    too_many = delimited(9, b"") * (protobuf_codec.MAX_FIELDS + 1)
    for decode in (decode_infer, partial(protobuf_codec.decode, "inference.ModelReadyRequest")):
        with pytest.raises(BadRequest, match=f"more than {protobuf_codec.MAX_FIELDS} fields"):
            decode(too_many)
    unpacked = (tag(3, 0) + b"\1") * (MAX_UNPACKED + 1)
    with pytest.raises(BadRequest, match=f"more than {MAX_UNPACKED} fields"):
        decode_contents("input 'x'", "INT64", (MAX_UNPACKED + 1,), memoryview(unpacked))


@pytest.mark.parametrize(("count", "size"), [(MAX_TYPED + 1, 1), (1, 1 << 21)])
def test_typed_contents_are_bounded(count: int, size: int) -> None:
    packed = delimited(3, b"\1" * size)
    with pytest.raises(BadRequest, match="send more in raw_input_contents"):
        decode_contents("input 'x'", "INT64", (count,), memoryview(packed))


def test_grpc_inputs_are_compared_with_the_model_before_elements_are_read() -> None:
    seen = []
    with pytest.raises(BadRequest, match="is cut off"):
        decode_infer(message(b"BYTES", raw=b"\xff"), check=seen.append)
    assert [each.datatype for each in seen[0].inputs] == ["BYTES"]


def test_only_numbers_in_raw_contents_stay_on_the_event_loop() -> None:
    assert is_plain(message(b"FP32", raw=bytes(4)))
    assert not is_plain(message(b"BYTES", raw=bytes(4)))
    assert not is_plain(message(b"FP32", contents=delimited(6, bytes(4))))
    assert not is_plain(b"\xff")


def test_packed_numbers_are_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Tensor("INT64", np.array([0, 1, 127, 128, -1, 1 << 40, 300, 5], "<i8"))
    packed = encode_contents(tensor)
    monkeypatch.setattr(protobuf_codec, "_SLICE", 3)
    assert decode_contents("x", "INT64", (8,), memoryview(packed)).array.tolist() == tensor.array.tolist()
    with pytest.raises(ValueError, match=r"ends within a number|longer than 10 bytes"):
        protobuf_codec.unpack_varints(memoryview(b"\xff" * 40), "x")


def outputs(*names: str) -> Outputs:
    known = {
        "a": Tensor("FP32", np.array([[1.5, np.nan, 3], [np.inf, -np.inf, 0]], "f4")),
        "b": Tensor("INT8", np.arange(8, dtype="i1").reshape(2, 2, 2)),
        "c": Tensor("BYTES", np.array([["ä\n".encode() * 30, b"x"], [b"\xff" * 30, b'"']], object)),
        "d": Tensor("BF16", np.array([0x3F80, 0x4000], "<u2")),
        "e": Tensor("FP64", np.zeros((0, 2))),
        "f": Tensor("FP32", np.float32(2).reshape(())),
    }
    return {name: known[name] for name in names}


def shorten(patch: pytest.MonkeyPatch) -> None:
    for module in (json_values, v1_codec, predict_codec):
        patch.setattr(module, "LONG_ARRAY", 1)
    patch.setattr(json_values, "PIECE", 7)


@pytest.mark.parametrize("names", ["a", "b", "c", "d", "e", "f", "abcd", "abf", ""])
@pytest.mark.parametrize("by_rows", [True, False])
def test_v1_answers_in_pieces_are_those_at_once(names: str, by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, response = DecodedPredict(InferRequest("m", {}), by_rows, False), InferResponse("m", 1, outputs(*names))
    (at_once,) = encode_predictions(decoded, response)
    shorten(monkeypatch)
    assert b"".join(encode_predictions(decoded, response)) == at_once
    json.loads(at_once)


@pytest.mark.parametrize("names", ["abcdef", ""])
def test_generate_answers_in_pieces_are_those_at_once(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    response = InferResponse("m", 1, outputs(*names), "id", {"cost": 1, "a": 2})
    at_once = generate.encode_generate(response)
    shorten(monkeypatch)
    assert generate.encode_generate(response) == at_once
    assert json.loads(at_once)["cost"] == 1


@pytest.mark.parametrize("name", "abcdf")
@pytest.mark.parametrize("batch", [True, False])
def test_predict_answers_in_pieces_are_those_at_once(name: str, batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [predict_codec.PredictPart(InferRequest("m", {}), 2 if batch else 1, True)]
    responses = [InferResponse("m", 1, outputs(name))]
    encode = partial(predict_codec.encode_predictions, parts, responses, batch=batch, version="1", seconds=0.0)
    (at_once,) = encode()
    if name == "c":  # the text of bytes that are not UTF-8 is replaced at once, not in pieces
        return
    shorten(monkeypatch)
    assert b"".join(encode()) == at_once
    json.loads(at_once)


def test_documents_in_pieces_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"choices": [{"text": 'a"\n' * 20, "more": None}, {}], "usage": {"tokens": 3}, "none": []}
    monkeypatch.setattr(json_values, "PIECE", 4)
    assert b"".join(document_pieces(document)) == json_values.dump_json(document)


def test_a_classification_is_bounded() -> None:
    zeros = Tensor("FP32", np.zeros((1, model_version.MAX_RANKED + 1), "f4"))
    with pytest.raises(BadRequest, match="the limits are"):
        model_version.classify("y", zeros, 1, (), batched=True)
    zeros = Tensor("FP32", np.zeros((2, model_version.MAX_CLASSES), "f4"))
    with pytest.raises(BadRequest, match="the limits are"):
        model_version.classify("y", zeros, model_version.MAX_CLASSES, (), batched=True)


ECHO = "INPUTS = {'x': ('BYTES', [-1])}\nOUTPUTS = {'y': ('BYTES', [-1])}\n\n\ndef predict(x):\n    return {'y': x}\n"
NUMBERS = ", ".join(["1"] * (SHORT // 3))
BYTES, LENGTH = binary("BYTES", [SHORT // 4], bytes(SHORT))


@pytest.mark.parametrize(
    ("handler", "model", "body", "headers"),
    [
        (v2.infer, "m", b" " * json_values.LONG + b"{}", {}),
        (v2.infer, "text", BYTES, {"inference-header-content-length": str(LENGTH)}),
        (v1.predict, "m", f'{{"instances": [{NUMBERS}]}}'.encode(), {}),
        (generate.generate, "m", f'{{"x": [{NUMBERS}]}}'.encode(), {}),
        (predict.predict, "m", f'{{"inputs": [{NUMBERS}]}}'.encode(), {}),
        (trtis.infer, "text", BYTES, {"nv-inferrequest": 'batch_size: 1 input { name: "x" batch_byte_size: 4 }'}),
    ],
    ids=["V2 JSON", "V2 strings", "V1", "generate", "predict", "TRTIS strings"],
)
def test_long_bodies_are_decoded_off_the_event_loop(
    handler: Any, model: str, body: bytes, headers: dict[str, str], tmp_path: Path
) -> None:
    write_times(tmp_path, "m", 1)
    write_python(tmp_path, "text", ECHO)

    async def case() -> None:
        house = await House(tmp_path).start()
        request = HttpRequest("POST", "/", "", headers, body, "", lambda response: None, 0.0)
        request.params = {"model": model}
        outcome = handler(house.server, request)
        assert isinstance(outcome, Coroutine), "it was decoded at once"
        outcome.close()

    play(case())


def test_large_requests_are_not_looked_up_in_the_cache() -> None:
    small, large = (InferRequest("m", {"x": Tensor("FP32", np.zeros(count, "f4"))}) for count in (1 << 18, 1 << 19))
    assert model_version._is_cacheable(small)
    assert not model_version._is_cacheable(large)
