"""Who may call, how much, how often; what is logged and counted: as over HTTP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import Caller, grpc_address
from tests.serving import RunningServer

INFER, INFERRED = "/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse"
INDEX, INDEXED = "/inference.GRPCInferenceService/RepositoryIndex", "inference.RepositoryIndexResponse"
READY, IS_READY = "/inference.GRPCInferenceService/ServerReady", "inference.ServerReadyResponse"
Serve = Callable[..., RunningServer]
Message = Callable[..., Any]
Callers = Callable[[str], Caller]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "echo", "FP32")
    return folder


def ask(message: Message, elements: int = 1, **fields: Any) -> Any:
    made = message("inference.ModelInferRequest", **{"model_name": "echo", **fields})
    made.inputs.add(name="x", datatype="FP32", shape=[elements])
    made.raw_input_contents.append(np.zeros(elements, np.float32).tobytes())
    return made


def refusal(caller: Caller, method: str, answer: str, request: Any, **how: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        caller(method, answer, request, **how)
    return caught.value


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture(scope="module")
def guarded(serve_module: Serve, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokens")
    flags = []
    for name in ("api", "admin"):
        (folder / name).write_text(f"the-{name}-token")
        flags += [f"--{name}-token-file", str(folder / name)]
    return grpc_address(serve_module(repository, "--grpc-port", "0", *flags))


def test_admin_by_loopback_needs_a_local_authority(
    serve_module: Serve, repository: Path, caller_of: Callers, message: Message
) -> None:
    address = grpc_address(serve_module(repository, "--grpc-port", "0"))
    request = message("inference.RepositoryIndexRequest")
    assert caller_of(address)(INDEX, INDEXED, request)
    with grpc.insecure_channel(address, options=[("grpc.default_authority", "evil.example")]) as channel:
        call = channel.unary_unary(INDEX, request_serializer=lambda made: made.SerializeToString())
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_messages_have_the_bound_of_http_packed_and_unpacked(
    serve_module: Serve, repository: Path, caller_of: Callers, message: Message
) -> None:
    caller = caller_of(grpc_address(serve_module(repository, "--grpc-port", "0", "--http-max-input-size", "1000000")))
    assert caller(INFER, INFERRED, ask(message, 240_000)).outputs
    for how in ({}, {"compression": grpc.Compression.Gzip}):
        error = refusal(caller, INFER, INFERRED, ask(message, 250_000), **how)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--http-max-input-size" in error.details()


def test_inference_needs_the_api_token_and_probes_none(guarded: str, caller_of: Callers, message: Message) -> None:
    caller = caller_of(guarded)
    error = refusal(caller, INFER, INFERRED, ask(message))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "--api-token-file" in error.details()
    assert refusal(caller, INFER, INFERRED, ask(message), metadata=bearer("x")).code() is error.code()
    assert caller(INFER, INFERRED, ask(message), metadata=bearer("the-api-token")).model_name == "echo"
    assert caller(READY, IS_READY, b"").ready


def test_the_repository_needs_the_admin_token(guarded: str, caller_of: Callers, message: Message) -> None:
    caller = caller_of(guarded)
    error = refusal(caller, INDEX, INDEXED, b"", metadata=bearer("the-api-token"))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caller(INDEX, INDEXED, b"", metadata=bearer("the-admin-token")).models[0].name == "echo"


def test_a_stream_is_refused_as_a_call_is(guarded: str, caller_of: Callers, message: Message) -> None:
    path, answer = "/inference.GRPCInferenceService/ModelStreamInfer", "inference.ModelStreamInferResponse"
    with pytest.raises(grpc.RpcError) as caught:
        list(caller_of(guarded).stream(path, answer, [ask(message)]))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    answers = list(caller_of(guarded).stream(path, answer, [ask(message)], metadata=bearer("the-api-token")))
    assert [each.infer_response.model_name for each in answers] == ["echo"]


def test_who_was_forwarded_is_no_admin_by_loopback(address: str, caller_of: Callers) -> None:
    caller = caller_of(address)
    assert caller(INDEX, INDEXED, b"").models
    error = refusal(caller, INDEX, INDEXED, b"", metadata=(("x-forwarded-for", "10.0.0.1"),))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


def test_sizes_and_rates_are_limited(serve: Serve, repository: Path, caller_of: Callers, message: Message) -> None:
    limits = ("--max-request-size-mb", "1", "--rate-limit-per-minute", "3")
    server = serve(repository, "--grpc-port", "0", *limits)
    caller = caller_of(grpc_address(server))
    large = refusal(caller, INFER, INFERRED, ask(message, 1 << 19))
    assert large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    answers = [caller(INFER, INFERRED, ask(message)) for _ in range(2)]
    assert len(answers) == 2
    error = next(error for error in (_error(caller, ask(message)) for _ in range(5)) if error is not None)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "requests a minute" in error.details()
    assert int(dict(error.trailing_metadata())["retry-after"]) > 0


def _error(caller: Caller, request: Any) -> grpc.RpcError | None:
    try:
        caller(INFER, INFERRED, request)
    except grpc.RpcError as error:
        return error
    return None


def test_a_message_beyond_the_budget_is_refused(
    serve: Serve, repository: Path, caller_of: Callers, message: Message
) -> None:
    server = serve(repository, "--grpc-port", "0", "--max-bytes-in-flight", "1MiB")
    caller = caller_of(grpc_address(server))
    assert refusal(caller, INFER, INFERRED, ask(message, 1 << 19)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caller(INFER, INFERRED, ask(message)).model_name == "echo"


def test_calls_are_counted_logged_and_known_by_their_id(
    serve: Serve, repository: Path, caller_of: Callers, message: Message
) -> None:
    server = serve(repository, "--grpc-port", "0", "--access-log")
    caller = caller_of(grpc_address(server))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    caller(INFER, INFERRED, ask(message), metadata=(("x-request-id", "mine"), ("traceparent", trace)))
    refusal(caller, INFER, INFERRED, ask(message, model_name="nobody"))
    refusal(caller, INFER, INFERRED, ask(message, 2, model_version="7"))

    def logged() -> list[dict[str, Any]]:
        return [line for line in server.log() if line.get("path") == INFER]

    server.wait_until(lambda: len(logged()) == 3, "logging three calls")
    assert [line["status"] for line in logged()] == [200, 404, 404]
    assert (logged()[0]["request_id"], logged()[0]["traceparent"]) == ("mine", trace)
    metrics = server.get("/metrics").body.decode()
    counted = [line for line in metrics.splitlines() if 'protocol="grpc-v2"' in line and "_count" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == 3
    assert any('code="200"' in line and 'model="echo"' in line for line in counted)
    assert server.get("/status").json()["in_flight"] == 0


def test_a_failed_model_is_opaque_and_found_in_the_log_by_the_trailer(
    rpc_server: RunningServer, caller: Caller, message: Message
) -> None:
    request = message("inference.ModelInferRequest", model_name="moody")
    request.inputs.add(name="seconds", datatype="FP32", shape=[1]).contents.fp32_contents.append(-1)
    error = refusal(caller, INFER, INFERRED, request)
    assert (error.code(), "secret" in error.details()) == (grpc.StatusCode.INTERNAL, False)
    identity = dict(error.trailing_metadata())["x-request-id"]
    rpc_server.wait_until(
        lambda: any(line.get("request_id") == identity and line["level"] == "ERROR" for line in rpc_server.log()),
        "told",
    )


def test_a_method_that_is_not_served_is_unimplemented(caller: Caller) -> None:
    error = refusal(caller, "/inference.GRPCInferenceService/Nothing", INFERRED, b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x2a\x01\x0a", b"\x3a\x00"])
def test_bytes_that_are_no_message_are_the_clients_fault(caller: Caller, body: bytes) -> None:
    for method in ("ModelInfer", "ModelReady", "ModelMetadata", "RepositoryModelLoad"):
        error = _error_of(caller, f"/inference.GRPCInferenceService/{method}", body)
        assert error is None or error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def _error_of(caller: Caller, method: str, body: bytes) -> grpc.RpcError | None:
    try:
        caller.channel.unary_unary(method)(body, timeout=60)
    except grpc.RpcError as error:
        return error
    return None
