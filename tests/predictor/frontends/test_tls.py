"""The predictor serves HTTPS and gRPC over TLS, with certificates that change and with those of clients."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.certificates import Authority
from tests.eventually import eventually
from tests.onnx_models import write_python
from tests.serving import RunningServer, json_tensor

MODEL = """
INPUTS = {"x": ("FP32", [-1, -1])}
OUTPUTS = {"y": ("FP32", [-1, -1])}


def predict(x):
    return {"y": x + 1}
"""
ONE = {"inputs": [json_tensor("x", "FP32", [1, 1], [1.0])]}


class SecureServer(RunningServer):
    """A predictor whose HTTP port is spoken to over TLS."""

    client: ssl.SSLContext

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        return self.client.wrap_socket(super().connect(timeout_s), server_hostname="localhost")

    def serial(self) -> str:
        with self.connect() as connection:
            assert isinstance(connection, ssl.SSLSocket)
            return str((connection.getpeercert() or {})["serialNumber"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    write_python(tmp_path / "models", "m", MODEL)
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[SecureServer]:
    certificate, key = authority.issue()
    SecureServer.client = ssl.create_default_context(cafile=str(authority.path))
    SecureServer.client.load_cert_chain(*authority.issue("client"))
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.path))
    running = SecureServer(tmp_path, "--model-repository", str(tmp_path / "models"), "--grpc-port", "0", *flags)
    yield running
    assert running.stop() == 0


def test_http_and_grpc_are_served_over_tls_to_clients_with_a_certificate(
    server: SecureServer, authority: Authority, tmp_path: Path
) -> None:
    assert server.infer("m", ONE).json()["outputs"][0]["data"] == [2.0]
    large = np.arange(500_000, dtype=np.float32)
    answer = server.infer("m", {"inputs": [json_tensor("x", "FP32", [1, large.size], large.tolist())]}, full=True)
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"][-1] == large.size
    with RunningServer.connect(server) as plain, suppress(ConnectionResetError):
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    stranger = ssl.create_default_context(cafile=str(authority.path))
    with suppress(OSError), stranger.wrap_socket(RunningServer.connect(server), server_hostname="localhost") as refused:
        refused.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not refused.recv(1)
    # The library verifies names by its own list: the one of the certificate, not the address.
    port = server.wait_for_event("grpc.listening")["grpc_port"]
    files = {"private_key": str(tmp_path / "client.key"), "certificate_chain": str(tmp_path / "client.crt")}
    client = triton.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(authority.path), **files)
    tensor = triton.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    assert client.infer("m", [tensor]).as_numpy("y").tolist() == [[2.0]]
    client.close()


def test_a_changed_certificate_is_served_and_a_broken_one_is_not(server: SecureServer, authority: Authority) -> None:
    first = server.serial()
    _, key = authority.issue()
    eventually(lambda: server.serial() != first, "the certificate to change")
    second = server.serial()
    key.write_text("broken")
    told = "the certificate stays as it was"
    eventually(lambda: any(told in str(line.get("message")) for line in server.log()), "the problem to be logged")
    assert server.serial() == second


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls-key", "some.key"), "--tls-cert is missing"),
        (("--tls-cert", "/nowhere/tls.crt"), "/nowhere/tls.crt: No such file"),
    ],
)
def test_files_that_cannot_be_used_end_the_start(tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        RunningServer(tmp_path, "--model-repository", str(tmp_path), *flags)
