"""A predictor on loopback refuses the web pages of other sites; elsewhere it cannot know its own names."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import ROOT, RunningServer

FLAGS = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris")
FLOWER = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
EVIL = {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = (*FLAGS, "--allowed-hosts", "Iris.Example", "--grpc-port", "0")
    with RunningServer(tmp_path_factory.mktemp("log"), *flags) as running:
        yield running


@pytest.mark.parametrize("full", [False, True])
def test_a_foreign_origin_or_host_is_refused_with_the_setting_that_permits_it(
    server: RunningServer, full: bool
) -> None:
    for headers in EVIL:
        answered = server.infer("iris", FLOWER, headers, full=full)
        assert (answered.status, "--allowed-hosts" in answered.error) == (403, True)
        assert server.get("/v2/health/ready", headers).status == 403
    for headers in (
        {"Host": "iris.example:8080"},
        {"Origin": "https://iris.example"},
        {"Origin": "http://localhost:3000"},
    ):
        assert server.infer("iris", FLOWER, headers, full=full).status == 200


def test_a_head_that_was_admitted_before_opens_nothing_to_the_next(server: RunningServer) -> None:
    with server.connect() as connection:
        client = http.client.HTTPConnection("localhost")
        client.sock = connection
        for headers, status in (({}, 200), ({}, 200), (EVIL[0], 403)):
            client.request("GET", "/v2/health/ready", headers=headers)
            reply = client.getresponse()
            reply.read()
            assert reply.status == status


def test_a_web_socket_is_opened_to_no_foreign_page(server: RunningServer) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    for headers, status in (({}, 101), (EVIL[0], 403)):
        client = http.client.HTTPConnection("localhost")
        client.sock = server.connect()
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        client.request("GET", "/predict/stream", headers={**upgrade, **key, **headers})
        assert client.getresponse().status == status
        client.close()


@pytest.mark.parametrize(
    ("authority", "origin", "code"),
    [
        ("evil.example", "", "PERMISSION_DENIED"), ("", "http://evil.example", "PERMISSION_DENIED"),
        ("", "null", "PERMISSION_DENIED"), ("", "", "OK"), ("localhost:1", "", "OK"), ("[::1]:1", "", "OK"),
        ("iris.example:8081", "https://iris.example", "OK"),
    ],
)  # fmt: skip
def test_a_call_by_a_foreign_authority_or_origin_is_refused(
    server: RunningServer, authority: str, origin: str, code: str
) -> None:
    options = [("grpc.default_authority", authority)] if authority else []
    with grpc.insecure_channel(grpc_address(server), options=options) as channel:
        metadata = [("origin", origin)] if origin else None
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerReady").future(
            b"", metadata=metadata, timeout=60
        )
        assert call.code().name == code


def test_a_call_over_a_unix_socket_has_no_foreign_authority(tmp_path: Path) -> None:
    ports = ("--http-port", "8080", "--grpc-port", "8081", "--metrics-port", "8082")
    with RunningServer(tmp_path, *FLAGS, "--host", f"unix:{tmp_path}", *ports) as running:
        running.wait_for_event("grpc.listening")
        with grpc.insecure_channel(f"unix:{tmp_path}/8081") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerReady").future(b"", timeout=60)
            assert call.code().name == "OK"


@pytest.mark.parametrize(("flags", "env"), [(("--host", "0.0.0.0"), {}), ((), {"K_SERVICE": "iris"})])
def test_beyond_loopback_and_behind_a_sidecar_any_name_may_be_its_own(
    tmp_path: Path, flags: tuple[str, ...], env: dict[str, str]
) -> None:
    with RunningServer(tmp_path, *FLAGS, *flags, env=env) as running:
        for headers in EVIL:
            assert running.infer("iris", FLOWER, headers).status == 200
