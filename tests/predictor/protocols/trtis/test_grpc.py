"""The TensorRT Inference Server over gRPC, asked by clients of 0.7 (the published proto) and of 0.11."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.onnx_models import write_identity
from tests.predictor.fuzzing import changed, fuzz
from tests.predictor.protocols.trtis.judge import PACKAGE, Judge
from tests.serving import RunningServer

A = np.array([[1, 2, 3, 4], [9, 8, 7, 6]], "<f4")
B = np.ones((2, 4), "<f4")
Ask = Callable[..., bytes]


@pytest.fixture(scope="module")
def served(zoo: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(zoo, "--grpc-port", "0", "--id", "inference:0")


@pytest.fixture(scope="module")
def ask(served: RunningServer) -> Iterator[Ask]:
    with channel(served) as opened:

        def asked(method: str, request: Any, service: str = "GRPCService", **how: Any) -> bytes:
            return call(opened, method, request, service, **how)

        yield asked


def channel(server: RunningServer) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}")


def call(opened: grpc.Channel, method: str, request: Any, service: str = "GRPCService", **how: Any) -> bytes:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return bytes(opened.unary_unary(f"/{PACKAGE}.{service}/{method}")(body, timeout=60, **how))


def request_of(judge: Judge, text: str, *blobs: bytes, **fields: Any) -> Any:
    header = judge.text("InferRequestHeader", text)
    return judge.new("InferRequest", meta_data=header, raw_input=blobs, **{"model_name": "add_sub", **fields})


@pytest.mark.parametrize("service", ["GRPCService", "GRPCServer"])
def test_raw_and_classes_come_as_they_were_asked_for(ask: Ask, old: Judge, service: str) -> None:
    text = """batch_size: 2 input { name: "a" byte_size: 16 } input { name: "b" byte_size: 16 }
        output { name: "sum" byte_size: 16 cls { count: 1 } } output { name: "difference" byte_size: 16 }"""
    answer = old.binary("InferResponse", ask("Infer", request_of(old, text, A.tobytes(), B.tobytes()), service))
    assert (answer.request_status.code, answer.request_status.server_id) == (1, "inference:0")
    total, difference = answer.meta_data.output
    assert [[(cls.idx, cls.value) for cls in row.cls] for row in total.batch_classes] == [[(3, 5.0)], [(0, 10.0)]]
    assert (difference.raw.byte_size, answer.raw_output[0]) == (16, b"")
    assert (np.frombuffer(answer.raw_output[1], "<f4").reshape(2, 4) == A - B).all()


def test_a_client_of_later_years_is_answered_with_dims(ask: Ask, new: Judge) -> None:
    text = 'batch_size: 2 input { name: "a" dims: 4 } input { name: "b" dims: 4 } output { name: "sum" }'
    answer = new.binary("InferResponse", ask("Infer", request_of(new, text, A.tobytes(), B.tobytes(), version=1)))
    assert answer.request_status.code == 1
    assert (list(answer.meta_data.output[0].raw.dims), answer.meta_data.output[0].raw.batch_byte_size) == ([4], 32)
    assert (np.frombuffer(answer.raw_output[0], "<f4").reshape(2, 4) == A + B).all()


@pytest.mark.parametrize(("version", "expected"), [("", -5), ("1", 5), ("2", -5), ("-1", -5)])
def test_a_version_may_be_text(ask: Ask, old: Judge, version: str, expected: int) -> None:
    text = 'batch_size: 1 input { name: "x" byte_size: 4 }'
    request = request_of(old, text, (5).to_bytes(4, "little"), model_name="two_versions", version=version)
    answer = old.binary("InferResponse", ask("Infer", request))
    assert int.from_bytes(answer.raw_output[0], "little", signed=True) == expected


@pytest.mark.parametrize(("version", "expected"), [(-1, -5), (1, 5), (2, -5)])
def test_a_version_may_be_a_number(ask: Ask, new: Judge, version: int, expected: int) -> None:
    request = request_of(
        new, 'input { name: "x" dims: 1 }', (5).to_bytes(4, "little"), model_name="two_versions", version=version
    )
    answer = new.binary("InferResponse", ask("Infer", request))
    assert int.from_bytes(answer.raw_output[0], "little", signed=True) == expected


@pytest.mark.parametrize(
    ("text", "blobs", "model", "code", "told"),
    [
        ("batch_size: 1", [], "nobody", 4, "no status available for unknown model 'nobody'"),
        ("", [], "add_sub", 5, "batch-size must be >= 1"),
        ('batch_size: 1 input { name: "a" byte_size: 16 }', [], "add_sub", 5, "raw_input has 0 tensors"),
        ('batch_size: 1 input { name: "a" byte_size: 16 }', [bytes(15)], "add_sub", 5, "unexpected size 15"),
        ('batch_size: 1 input { name: "a" byte_size: 16 }', [bytes(16)], "add_sub", 5, "missing 'b'"),
        ('input { name: "seconds" byte_size: 4 }', [np.array([-1], "<f4").tobytes()], "moody", 3, "moody"),
    ],
)
def test_a_failure_is_told_in_the_message(
    ask: Ask, old: Judge, text: str, blobs: list[bytes], model: str, code: int, told: str
) -> None:
    answer = old.binary("InferResponse", ask("Infer", request_of(old, text, *blobs, model_name=model)))
    assert answer.request_status.code == code
    assert told in answer.request_status.msg
    assert "secret" not in answer.request_status.msg
    assert not answer.HasField("meta_data")


@pytest.mark.parametrize("service", ["GRPCService", "GRPCServer"])
def test_a_stream_is_answered_in_order_and_outlives_a_request_that_fails(
    served: RunningServer, old: Judge, service: str
) -> None:
    text = 'batch_size: 1 input { name: "x" byte_size: 4 }'
    asked = [("two_versions", "1", 5), ("nobody", "", 6), ("two_versions", "2", 7), ("two_versions", "1", 8)]
    requests = [
        request_of(old, text, number.to_bytes(4, "little"), model_name=model, version=version)
        for model, version, number in asked
    ]
    with channel(served) as opened:
        method = opened.stream_stream(f"/{PACKAGE}.{service}/StreamInfer")
        replies = list(method(iter([each.SerializeToString() for each in requests]), timeout=60))
    answers = [old.binary("InferResponse", reply) for reply in replies]
    assert [each.request_status.code for each in answers] == [1, 4, 1, 1]
    numbers = [int.from_bytes(each.raw_output[0], "little", signed=True) for each in answers if each.raw_output]
    assert numbers == [5, -7, 8]


def test_status_health_and_profile_are_those_of_http(ask: Ask, old: Judge) -> None:
    answer = old.binary("StatusResponse", ask("Status", old.new("StatusRequest", model_name="add_sub")))
    assert answer.server_status.model_status["add_sub"].version_status[1].ready_state == 1
    assert answer.server_status.ready_state == 2
    assert len(old.binary("StatusResponse", ask("Status", b"")).server_status.model_status) > 10
    assert (
        old.binary("StatusResponse", ask("Status", old.new("StatusRequest", model_name="x"))).request_status.code == 4
    )
    for mode in ("live", "ready"):
        assert old.binary("HealthResponse", ask("Health", old.new("HealthRequest", mode=mode))).health
    assert old.binary("HealthResponse", ask("Health", old.new("HealthRequest", mode="x"))).request_status.code == 5
    assert old.binary("ProfileResponse", ask("Profile", old.new("ProfileRequest", cmd="x"))).request_status.code == 5
    assert old.binary("ProfileResponse", ask("Profile", old.new("ProfileRequest", cmd="stop"))).request_status.code == 5


def test_inferences_are_guarded_and_counted_by_how_they_ended(
    tmp_path: Path, serve: Callable[..., RunningServer], old: Judge
) -> None:
    write_identity(tmp_path, "m", "FP32")
    (tmp_path / "token").write_text("secret")
    server = serve(tmp_path, "--grpc-port", "0", "--api-token-file", str(tmp_path / "token"))
    token = (("authorization", "Bearer secret"),)
    with channel(server) as opened:
        request = request_of(old, 'input { name: "x" byte_size: 4 }', bytes(4), model_name="m")
        with pytest.raises(grpc.RpcError) as refused:
            call(opened, "Infer", request)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        assert call(opened, "Health", old.new("HealthRequest", mode="live"))
        call(opened, "Infer", request, metadata=token)
        request.raw_input[0] = b""
        call(opened, "Infer", request, metadata=token)
    metrics = server.get("/metrics", {"Authorization": "Bearer secret"}).body.decode().splitlines()
    counted = [line for line in metrics if 'protocol="grpc-trtis"' in line and "_count" in line]
    assert {code for code in ("200", "400", "401") if any(f'code="{code}"' in line for line in counted)} == {
        "200",
        "400",
        "401",
    }


def test_no_message_is_our_mistake(ask: Ask, served: RunningServer, old: Judge) -> None:
    good = request_of(
        old, 'batch_size: 1 input { name: "x" byte_size: 4 } output { name: "y" cls { count: 1 } }', bytes(4),
        model_name="identity_fp32",
    ).SerializeToString()  # fmt: skip

    @fuzz(400)
    @given(
        method=st.sampled_from(["Infer", "Infer", "Status", "Health"]), body=st.binary(max_size=60) | changed([good])
    )
    def holds(method: str, body: bytes) -> None:
        status = old.binary(f"{method}Response", ask(method, body)).request_status
        assert status.code in {1, 4, 5}, (status, method, body)

    holds()
    assert not [line for line in served.log() if line["level"] == "ERROR" and "moody" not in line["message"]]
