"""The embedded platform serves HTTPS and gRPC over TLS beside its plain port on loopback."""

import json
import os
import signal
import ssl
from http.client import HTTPSConnection
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tests.certificates import Authority
from tests.embedded import FLOWER, Platform, commands_of, serverless
from tests.eventually import eventually
from tests.ports import free_port, free_range


def ask(port: int, client: ssl.SSLContext) -> tuple[int, str]:
    """Return the status of an inference, and the serial number of the certificate."""
    connection = HTTPSConnection("localhost", port, context=client, timeout=60)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        serial = str((connection.sock.getpeercert() or {})["serialNumber"])
        connection.request("POST", "/iris/v2/models/iris/infer", json.dumps(FLOWER))
        return connection.getresponse().status, serial
    finally:
        connection.close()


def landing_page(port: int, client: ssl.SSLContext) -> str:
    connection = HTTPSConnection("localhost", port, context=client, timeout=60)
    try:
        connection.request("GET", "/iris", headers={"Accept": "text/html"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def infer(address: str, authority: Authority) -> list[int]:
    flower = triton.InferInput("x", [1, 4], "FP32")
    flower.set_data_from_numpy(np.array([[5.1, 3.5, 1.4, 0.2]], np.float32))
    with triton.InferenceServerClient(address, ssl=True, root_certificates=str(authority.path)) as client:
        return list(client.infer("iris", [flower], client_timeout=60).get_response().outputs[0].shape)


def test_https_and_grpc_have_the_newest_certificate_also_after_the_gateway_was_killed(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    certificate, key = authority.issue()
    files = ("--tls-cert", str(certificate), "--tls-key", str(key))
    client = ssl.create_default_context(cafile=str(authority.path))
    flags = ("--https", f"127.0.0.1:{port}", *files, "--service-ports", str(free_range(20)))
    with Platform(tmp_path / "home", flags=flags) as platform:
        platform.deploy(serverless().replace("protocolVersion: v2", "protocolVersion: grpc-v2"))
        platform.wait_phase("Ready", "Standby")
        status, first = ask(port, client)
        assert status == 200
        assert f'<span class="url">https://localhost:{port}/iris</span>' in landing_page(port, client)
        assert platform.ask().status == 200, "plain, on loopback"
        platform.wait(lambda: "grpcs" in platform.status().urls, "a port for gRPC")
        address = platform.status().urls["grpcs"].replace("127.0.0.1", "localhost")
        assert infer(address, authority) == [1, 3]
        authority.issue()
        eventually(lambda: ask(port, client)[1] != first, "the certificate to change")
        (gateway,) = (pid for pid, command in commands_of(platform.home) if "pilotlight.gateway\0--home" in command)
        os.kill(gateway, signal.SIGKILL)
        assert ask(port, client)[0] == 200
