"""Inference as clients of the TensorRT Inference Server ask for it, read back by protobuf's own library."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.onnx_models import write_identity
from tests.predictor.protocols.trtis.judge import Judge
from tests.serving import Answer, RunningServer

A = np.array([[1, 2, 3, 4], [9, 8, 7, 6]], "<f4")
B = np.ones((2, 4), "<f4")
INPUTS = 'input { name: "a" byte_size: 16 } input { name: "b" byte_size: 16 }'
SHAPED = 'input { name: "a" dims: 4 } input { name: "b" dims: [ 4 ] }'
MIXED = 'output { name: "difference" byte_size: 16 } output { name: "sum" byte_size: 16 cls { count: 2 } }'


def infer(server: RunningServer, path: str, header: str, *blobs: bytes, full: bool = False) -> Answer:
    return server.post(f"/api/infer/{path}", b"".join(blobs), {"NV-InferRequest": header}, full=full)


def code(old: Judge, answer: Answer) -> str:
    status = old.text("RequestStatus", answer.headers["nv-status"])
    return str(status.DESCRIPTOR.fields_by_name["code"].enum_type.values_by_number[status.code].name)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("form", ["", "?format=text", "?format=binary"])
def test_raw_outputs_come_first_and_classes_in_the_header_behind_them(
    server: RunningServer, old: Judge, form: str, full: bool
) -> None:
    answer = infer(server, f"add_sub{form}", f"batch_size: 2 {INPUTS} {MIXED}", A.tobytes(), B.tobytes(), full=full)
    assert (answer.status, code(old, answer)) == (200, "SUCCESS")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "nv-inferresponse" not in answer.headers
    raw, rest = answer.body[:32], answer.body[32:]
    assert (np.frombuffer(raw, "<f4").reshape(2, 4) == A - B).all()
    header = old.binary("InferResponseHeader", rest) if "binary" in form else old.text("InferResponseHeader", rest)
    assert (header.model_name, header.model_version, header.batch_size) == ("add_sub", 1, 2)
    difference, total = header.output
    assert (difference.name, difference.raw.byte_size) == ("difference", 16)
    assert total.name == "sum"
    assert not total.HasField("raw")
    best = [[(cls.idx, cls.value, cls.label) for cls in row.cls] for row in total.batch_classes]
    assert best == [[(3, 5.0, ""), (2, 4.0, "two")], [(0, 10.0, "zero"), (1, 9.0, "one")]]


def test_the_order_of_the_body_is_that_of_the_request(server: RunningServer, old: Judge) -> None:
    outputs = 'output { name: "sum" byte_size: 16 } output { name: "difference" byte_size: 16 }'
    answer = infer(server, "add_sub", f"batch_size: 1 {INPUTS} {outputs}", A[:1].tobytes(), B[:1].tobytes())
    assert (np.frombuffer(answer.body[:32], "<f4").reshape(2, 1, 4) == [A[:1] + B[:1], A[:1] - B[:1]]).all()
    assert [output.name for output in old.text("InferResponseHeader", answer.body[32:]).output] == ["sum", "difference"]


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_client_that_speaks_of_dims_is_answered_with_dims(server: RunningServer, new: Judge, form: str) -> None:
    header = f'id: 7 batch_size: 2 {SHAPED} output {{ name: "sum" }} output {{ name: "difference" cls {{ count: 1 }} }}'
    answer = infer(server, f"add_sub?format={form}", header, A.tobytes(), B.tobytes())
    assert answer.status == 200, answer.headers
    rest = answer.body[32:]
    described = new.binary("InferResponseHeader", rest) if form == "binary" else new.text("InferResponseHeader", rest)
    assert (list(described.output[0].raw.dims), described.output[0].raw.batch_byte_size) == ([4], 32)
    assert described.id == 7
    assert described.output[1].batch_classes[1].cls[0].idx == 0
    short = new.text("InferResponseHeader", answer.headers["nv-inferresponse"])
    assert [output.name for output in short.output] == ["sum", "difference"]
    assert not short.output[1].batch_classes


def test_a_score_has_all_its_digits(server: RunningServer, old: Judge) -> None:
    third = np.full((1, 4), 1 / 3, "<f4")
    asked = 'output { name: "sum" cls { count: 1 } }'
    answer = infer(server, "add_sub", f"batch_size: 1 {INPUTS} {asked}", third.tobytes(), bytes(16))
    (best,) = old.text("InferResponseHeader", answer.body).output[0].batch_classes[0].cls
    assert np.float32(best.value) == np.float32(1 / 3)


def test_a_model_without_batches_has_one_row_of_classes(server: RunningServer, old: Judge) -> None:
    header = 'batch_size: 1 input { name: "x" byte_size: 12 } output { name: "y" cls { count: 9 } }'
    answer = infer(server, "identity_fp32", header, np.array([1, 3, 2], "<f4").tobytes())
    (row,) = old.text("InferResponseHeader", answer.body).output[0].batch_classes
    assert [cls.idx for cls in row.cls] == [1, 2, 0]


def test_the_size_of_a_row_tells_its_variable_dimension(server: RunningServer) -> None:
    header = 'input { name: "x" byte_size: 8 } output { name: "y" byte_size: 8 }'
    assert infer(server, "identity_int64", header, b"\1" + bytes(7)).body[:8] == b"\1" + bytes(7)


def test_strings_have_the_size_of_the_batch(server: RunningServer, new: Judge) -> None:
    blob = b"\2\0\0\0hi\0\0\0\0"
    header = 'batch_size: 2 input { name: "x" batch_byte_size: 10 } output { name: "y" }'
    answer = infer(server, "echo", header, blob)
    assert answer.body.startswith(blob)
    assert new.text("InferResponseHeader", answer.body[10:]).output[0].raw.batch_byte_size == 10


def test_all_outputs_come_when_none_is_named(server: RunningServer) -> None:
    answer = infer(server, "add_sub", f"batch_size: 1 {INPUTS}", A[:1].tobytes(), B[:1].tobytes())
    assert np.frombuffer(answer.body[:32], "<f4").tolist() == [2, 3, 4, 5, 0, 1, 2, 3]


def test_a_version_may_be_named(server: RunningServer, old: Judge) -> None:
    header = 'batch_size: 1 input { name: "x" byte_size: 4 } output { name: "y" byte_size: 4 }'
    for version, expected in (("", -5), ("/1", 5), ("/2", -5)):
        answer = infer(server, f"two_versions{version}", header, (5).to_bytes(4, "little"))
        assert int.from_bytes(answer.body[:4], "little", signed=True) == expected
    answer = infer(server, "two_versions/3", header, bytes(4))
    assert (answer.status, code(old, answer), answer.body) == (404, "NOT_FOUND", b"")


def test_an_unknown_model_is_not_found(server: RunningServer, old: Judge) -> None:
    answer = infer(server, "x", "batch_size: 1")
    assert (answer.status, code(old, answer), answer.body) == (404, "NOT_FOUND", b"")
    assert answer.headers["nv-status"].startswith(
        "code: NOT_FOUND msg: \"no status available for unknown model \\'x\\'\""
    )


@pytest.mark.parametrize(
    ("header", "blob", "told"),
    [
        ("batch_size", b"", "NV-InferRequest:1:11: expected ':' after batch_size, found the end of the text"),
        ("inputt { }", b"", "NV-InferRequest:1:1: unknown field 'inputt'; did you mean input?"),
        ("tags { }", b"", "unknown field 'tags'"),
        ("batch_size: -1", b"", "must be an integer from 0"),
        ("", b"", "batch-size must be >= 1 for models that support batching"),
        ("batch_size: 99", b"", "expected 2 inputs but got 0"),
        (f"batch_size: 99 {INPUTS}", bytes(32 * 99), "batch-size must be <= 8"),
        (f"batch_size: 1 {INPUTS}", bytes(31), "unexpected size for input 'b': 16 bytes are announced, 15 remain"),
        (f"batch_size: 1 {INPUTS}", bytes(33), "unexpected additional input data for model 'add_sub'"),
        ('batch_size: 1 input { name: "c" byte_size: 16 }', bytes(16), "unexpected inference input 'c'"),
        ('batch_size: 1 input { name: "a" byte_size: 15 }', bytes(15), "unexpected size 15 for inference input 'a'"),
        ('batch_size: 1 input { name: "a" dims: 3 } input { name: "b" dims: 4 }', bytes(28), "unexpected shape"),
        ('batch_size: 1 input { name: "a" dims: -1 }', b"", "dims must be at most"),
        ('batch_size: 1 input { name: "a" } input { name: "a" }', bytes(32), "input[1].name = 'a' appears twice"),
        (f'batch_size: 1 {INPUTS} output {{ name: "z" }}', bytes(32), "unexpected inference output 'z'"),
        (f'batch_size: 1 {INPUTS} output {{ name: "sum" byte_size: 4 }}', bytes(32), "unexpected size 4 for inference"),
        (f'batch_size: 1 {INPUTS} output {{ name: "sum" cls {{ }} }}', bytes(32), "cls.count = 0, must be 1 or more"),
    ],
)
def test_a_mistake_is_told_in_the_status(
    server: RunningServer, old: Judge, header: str, blob: bytes, told: str
) -> None:
    answer = infer(server, "add_sub", header, blob)
    status = old.text("RequestStatus", answer.headers["nv-status"])
    assert (answer.status, code(old, answer), answer.body) == (400, "INVALID_ARG", b""), status
    assert told in status.msg


def test_a_request_without_the_header_is_told_what_it_holds(server: RunningServer, old: Judge) -> None:
    answer = server.post("/api/infer/add_sub", b"")
    assert "NV-InferRequest is missing" in old.text("RequestStatus", answer.headers["nv-status"]).msg


def test_a_variable_dimension_must_be_said(server: RunningServer, old: Judge) -> None:
    answer = infer(server, "matrix", 'batch_size: 1 input { name: "x" byte_size: 8 }', bytes(8))
    assert "set its dims" in old.text("RequestStatus", answer.headers["nv-status"]).msg
    answer = infer(server, "matrix", 'batch_size: 2 input { name: "x" dims: [ 1, 2 ] }', bytes(8))
    assert "must be 1 for 'matrix'" in old.text("RequestStatus", answer.headers["nv-status"]).msg


def test_a_failure_of_the_model_is_internal_and_opaque(server: RunningServer, old: Judge) -> None:
    answer = infer(server, "moody", 'input { name: "seconds" byte_size: 4 }', np.array([-1], "<f4").tobytes())
    assert (answer.status, code(old, answer)) == (500, "INTERNAL")
    assert "secret" not in answer.headers["nv-status"]


def test_inferences_are_counted_and_guarded_as_every_other(
    tmp_path: Path, serve: Callable[..., RunningServer], old: Judge
) -> None:
    write_identity(tmp_path, "m", "FP32")
    (tmp_path / "token").write_text("secret")
    server = serve(tmp_path, "--api-token-file", str(tmp_path / "token"))
    header = {"NV-InferRequest": 'batch_size: 1 input { name: "x" dims: 1 }'}
    refused = server.post("/api/infer/m", bytes(4), header)
    assert (refused.status, code(old, refused)) == (401, "UNKNOWN")
    assert server.get("/api/status").status == 401
    assert server.get("/api/health/ready").status == 200
    token = {"Authorization": "Bearer secret"}
    assert server.post("/api/infer/m", bytes(4), {**header, **token}).status == 200
    metrics = server.get("/metrics", token).body.decode()
    counted = [line for line in metrics.splitlines() if 'protocol="trtis"' in line and 'code="200"' in line]
    assert any("_count" in line and line.endswith(" 1") for line in counted), counted
