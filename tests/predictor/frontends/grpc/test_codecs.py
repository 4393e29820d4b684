"""The codecs without a server, judged by the protobuf library with Triton's own messages."""

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from pilotlight.wire.protobuf import delimited
from pilotlight_predictor.core.protobuf_codec import decode, encode
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Tensor
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.v2.grpc.infer_request import decode_infer
from pilotlight_predictor.protocols.v2.grpc.infer_response import encode_infer

TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(1 << 31), (1 << 31) - 1]),
    "INT64": ("int64_contents", [-(1 << 63), (1 << 63) - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [300, 65535]),
    "UINT32": ("uint_contents", [0, (1 << 32) - 1]),
    "UINT64": ("uint64_contents", [1, (1 << 64) - 1]),
    "FP32": ("fp32_contents", [1.5, float("inf")]),
    "FP64": ("fp64_contents", [-1e300, 0.1]),
    "BYTES": ("bytes_contents", [b"\xff\x00", b""]),
}


def request(**fields: Any) -> Any:
    return service_pb2.ModelInferRequest(model_name="m", **fields)


def typed(datatype: str, values: list[Any], shape: list[int] | None = None, field: str = "") -> Any:
    made = request()
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape or [len(values)])
    getattr(tensor.contents, field or TYPED[datatype][0]).extend(values)
    return made


def raw(datatype: str, blob: bytes, *shape: int) -> Any:
    made = request(raw_input_contents=[blob])
    made.inputs.add(name="x", datatype=datatype, shape=shape)
    return made


def refused(message: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_infer(message if isinstance(message, bytes) else message.SerializeToString())
    return str(caught.value)


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_read_and_written_in_every_type(datatype: str) -> None:
    field, values = TYPED[datatype]
    read = decode_infer(typed(datatype, values).SerializeToString())
    assert read.inputs["x"].datatype == datatype
    assert read.inputs["x"].array.dtype == NUMPY_TYPES[datatype]
    assert read.inputs["x"].array.tolist() == values
    assert not read.binary_output
    response = InferResponse("m", 3, {"y": read.inputs["x"]}, "id")
    written = service_pb2.ModelInferResponse.FromString(b"".join(encode_infer(response, raw=False)))
    assert (written.model_name, written.model_version, written.id) == ("m", "3", "id")
    assert list(getattr(written.outputs[0].contents, field)) == values
    assert not written.raw_output_contents


def test_numbers_may_come_one_by_one_or_in_several_packs() -> None:
    contents = b"\x10\x05" + b"\x12\x02\x06\x07" + b"\x10" + b"\xff" * 9 + b"\x01"  # 5; 6, 7; -1
    tensor = b"\x0a\x01x" + b"\x12\x05INT32" + b"\x18\x04" + b"\x2a" + bytes([len(contents)]) + contents
    read = decode_infer(b"\x2a" + bytes([len(tensor)]) + tensor)
    assert read.inputs["x"].array.tolist() == [5, 6, 7, -1]


def test_raw_contents_are_views_of_the_message() -> None:
    message = raw("FP32", np.arange(6, dtype=np.float32).tobytes(), 2, 3).SerializeToString()
    array = decode_infer(message).inputs["x"].array
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.shares_memory(array, np.frombuffer(message, np.uint8))


def test_a_head_that_is_remembered_does_not_mix_requests_up() -> None:
    messages = [raw("INT32", struct.pack("<i", n), 1) for n in (1, 2)]
    messages[1].id = "second"
    first, second = (decode_infer(message.SerializeToString()) for message in messages)
    first.parameters["mine"] = 1
    assert (first.id, second.id) == ("", "second")
    assert (first.inputs["x"].array.tolist(), second.inputs["x"].array.tolist()) == ([1], [2])
    assert second.parameters == {}


def test_raw_contents_may_stand_anywhere() -> None:
    whole = raw("INT32", b"\x01\0\0\0", 1)
    blob = b"\x3a\x04\x01\0\0\0"
    head = whole.SerializeToString().removesuffix(blob)
    read = decode_infer(blob + head)
    assert (read.model, read.inputs["x"].array.tolist()) == ("m", [1])


def test_parameters_of_every_kind_arrive() -> None:
    made = typed("FP32", [1.0])
    made.parameters["flag"].bool_param = False
    made.parameters["count"].int64_param = -3
    made.parameters["word"].string_param = "é"
    made.parameters["share"].double_param = 0.25
    made.parameters["huge"].uint64_param = (1 << 64) - 1
    made.parameters["priority"].uint64_param = 2
    made.parameters["timeout"].int64_param = 5000
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    read = decode_infer(made.SerializeToString())
    assert (read.priority, read.timeout_us) == (2, 5000)
    expected = {"flag": False, "count": -3, "word": "é", "share": 0.25, "huge": (1 << 64) - 1}
    told = {"triton_enable_empty_final_response": True}  # to whoever streams, not to the model
    assert read.parameters == {**expected, **told, "priority": 2, "timeout": 5000}


def test_parameters_of_an_answer_are_written_in_their_kind() -> None:
    told = {"flag": False, "count": -3, "huge": (1 << 64) - 1, "share": 0.5, "word": "w"}
    response = InferResponse("m", 1, {}, parameters=told)
    written = service_pb2.ModelInferResponse.FromString(b"".join(encode_infer(response, raw=True)))
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in written.parameters.items()}
    assert kinds == {
        "flag": "bool_param", "count": "int64_param", "huge": "uint64_param", "share": "double_param",
        "word": "string_param",
    }  # fmt: skip
    assert {key: getattr(written.parameters[key], kind) for key, kind in kinds.items()} == told


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_an_answer_that_has_no_typed_form_is_raw_as_a_whole(datatype: str) -> None:
    half = Tensor(datatype, np.ones(2, NUMPY_TYPES[datatype]))
    response = InferResponse("m", 1, {"a": Tensor("FP32", np.ones(1, np.float32)), "b": half})
    written = service_pb2.ModelInferResponse.FromString(b"".join(encode_infer(response, raw=False)))
    assert len(written.raw_output_contents) == 2
    assert not written.outputs[0].HasField("contents")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (typed("INT8", [128]), "input 'x'.contents.int_contents has a number that does not fit INT8"),
        (typed("UINT16", [65536]), "input 'x'.contents.uint_contents has a number that does not fit UINT16"),
        (typed("FP32", [1.0, 2.0], [3]), "input 'x'.contents.fp32_contents has 2 elements, shape [3] takes 3"),
        (typed("INT64", [1], field="int_contents"), "input 'x' has int_contents, must have int64_contents"),
        (typed("FP16", [1.0], field="fp32_contents"), "input 'x': FP16 has no typed contents; send it in raw_input"),
        (raw("FP32", b"123", 1), "unexpected size for input 'x'"),
        (raw("FP128", b"", 0), "inputs[0].datatype = 'FP128', must be one of"),
        (raw("FP32", b"", -1), "inputs[0].shape has -1, must be of numbers from 0"),
        (request(raw_input_contents=[b""]), "raw_input_contents has 1 tensors, inputs has 0"),
        (request(model_version="new"), "model_version = 'new', must be a number, or empty for the newest"),
        (b"\xff", "the message is not valid protobuf: it ends within a number"),
        (b"\x0a\x05ab", "the message is not valid protobuf: field 1 claims 5 bytes, 2 are left"),
        (b"\x0a\x01\xff", "the message is not valid protobuf: model_name is not UTF-8"),
        (b"\x0b", "the message is not valid protobuf: field 1 has wire type 3"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(message: Any, sentence: str) -> None:
    assert sentence in refused(message)


@pytest.mark.parametrize("field", [b"\x78\x01", b"\x7a\x00"], ids=["numbers", "bytes"])
def test_a_message_of_fields_that_nobody_knows_is_not_read_to_its_end(field: bytes) -> None:
    """Its end is no field: whoever got there would say so."""
    junk = field * 20_000 + b"\x7f"
    for message in (junk, delimited(5, junk)):
        with pytest.raises(BadRequest, match="more than 10000 fields"):
            decode_infer(message)


@pytest.mark.parametrize("field", [b"\x00\x01", b"\x02\x00"], ids=["number", "bytes"])
def test_a_field_with_the_number_0_is_refused_where_it_is_met(field: bytes) -> None:
    with pytest.raises(BadRequest, match="number 0"):
        decode_infer(field + b"\x7f")


def test_contents_beside_raw_contents_are_refused() -> None:
    made = typed("FP32", [1.0])
    made.raw_input_contents.append(b"\0\0\0\0")
    assert refused(made) == "input 'x' has both contents and raw_input_contents; send one of them"


def test_reserved_parameters_are_refused() -> None:
    made = typed("FP32", [1.0])
    made.parameters["triton_x"].bool_param = True
    assert refused(made) == "parameters.triton_x is reserved; choose another name"


@given(st.binary(max_size=64))
def test_no_bytes_make_the_reader_fail_in_another_way(junk: bytes) -> None:
    for prefix in (b"", b"\x2a" + bytes([len(junk)])):
        with suppress(BadRequest):
            decode_infer(prefix + junk)


@given(st.binary(max_size=64), st.sampled_from(["RepositoryModelLoadRequest", "ModelConfig", "ModelStatistics"]))
def test_no_bytes_make_the_reader_of_messages_fail_in_another_way(junk: bytes, name: str) -> None:
    with suppress(BadRequest):
        decode(f"inference.{name}", junk)


def test_a_configuration_is_written_as_the_library_reads_it() -> None:
    config = {
        "name": "m", "max_batch_size": 8, "platform": "onnxruntime_onnx", "backend": None, "unknown": 1,
        "version_policy": {"specific": {"versions": [1, "3"]}},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3], "reshape": {"shape": []}}],
        "dynamic_batching": {"priority_queue_policy": {"1": {"timeout_action": "DELAY"}}, "preserve_ordering": False},
        "instance_group": [{"kind": "KIND_CPU", "count": 2, "gpus": [0, 1]}],
        "parameters": {"k": {"string_value": "v"}},
        "sequence_batching": {"control_input": [{"control": [{"fp32_false_true": [0.0, 1.0]}]}]},
    }  # fmt: skip
    read = model_config_pb2.ModelConfig.FromString(encode("inference.ModelConfig", config))
    expected = """
        name: "m" max_batch_size: 8 platform: "onnxruntime_onnx"
        version_policy { specific { versions: 1 versions: 3 } }
        input { name: "x" data_type: TYPE_FP32 dims: -1 dims: 3 reshape {} }
        instance_group { kind: KIND_CPU count: 2 gpus: 0 gpus: 1 }
        parameters { key: "k" value { string_value: "v" } }
        sequence_batching { control_input { control { fp32_false_true: 0 fp32_false_true: 1 } } }
    """
    assert read == text_format.Parse(expected, model_config_pb2.ModelConfig())
    back = decode("inference.ModelConfig", read.SerializeToString())
    assert back["input"][0]["dims"] == [-1, 3]
    assert back["parameters"] == {"k": {"string_value": "v"}}
