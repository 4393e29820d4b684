"""Each gRPC port of the gateway gets a changed certificate."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.certificates import Authority

from pilotlight.gateway.tls import GatewayTls
from pilotlight.wire.tls import TlsFiles

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")


def serial(port: int, authority: Authority) -> str:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        return str((connection.getpeercert() or {})["serialNumber"])


def test_every_grpc_port_gets_a_changed_certificate_and_keeps_it_while_the_files_are_broken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    tls = GatewayTls(TlsFiles(str(certificate), str(key)), "127.0.0.1")
    servers = [grpc.server(ThreadPoolExecutor(1)) for _ in range(2)]
    ports = [server.add_secure_port("127.0.0.1:0", tls.grpc_credentials()) for server in servers]
    for server in servers:
        server.start()
    try:
        (first,) = {serial(port, authority) for port in ports}
        authority.issue()
        (second,) = {serial(port, authority) for port in ports}
        assert second != first
        key.write_text("broken")
        assert {serial(port, authority) for port in ports} == {second}
    finally:
        for server in servers:
            server.stop(None).wait()
