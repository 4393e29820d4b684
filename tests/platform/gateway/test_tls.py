"""Each gRPC port of the gateway gets a changed certificate, and one server for each address that it has."""

import asyncio
import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.eventually import eventually_async
from tests.platform.gateway.linked import in_loop, linked
from tests.ports import free_port

from pilotlight.gateway.listeners import has_ipv6, listening_inodes
from pilotlight.gateway.routing_table import Route
from pilotlight.gateway.tls import GatewayTls
from pilotlight.targets.local.gateway.gateway_link import gateway_command
from pilotlight.targets.local.gateway.https_settings import HttpsSettings
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire import tls as wire_tls
from pilotlight.wire.tls import TlsFiles

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")


def serial(port: int, authority: Authority, host: str = "127.0.0.1") -> str:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((host, port), timeout=10)
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


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "localhost", "127.0.0.1", "[::1]"])
@in_loop
async def test_a_grpc_port_is_bound_without_conflict_whichever_address_https_has(tmp_path: Path, host: str) -> None:
    authority, port = Authority(tmp_path), free_port()
    certificate, key = map(str, authority.issue())
    flags = HttpsSettings(f"{host}:8443", certificate, key).gateway_flags()
    async with linked(tmp_path, command=gateway_command(Home(tmp_path), flags)) as made:
        assert (await made.publish(Route("default", "iris", grpc_port=port))).failed == ()
        for served in ["127.0.0.1", "::1"] if host != "[::1]" else ["::1"]:
            assert await asyncio.to_thread(serial, port, authority, served)
        await made.publish()
        await eventually_async(lambda: not listening_inodes(port), "the port to close")
        assert (await made.publish(Route("default", "iris", grpc_port=port))).failed == ()


def test_a_change_is_logged_as_information_and_an_unusable_file_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire_tls, "INTERVAL_S", 0.0)
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    tls = GatewayTls(TlsFiles(str(certificate), str(key)), "127.0.0.1")

    async def watch() -> None:
        task = asyncio.create_task(tls.reload_forever())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()

    authority.issue()
    asyncio.run(watch())
    key.write_text("broken")
    asyncio.run(watch())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["message"].split(":")[0]) for line in lines] == [
        ("INFO", f"{certificate} has changed"), ("WARNING", "the certificate stays as it was"),
    ]  # fmt: skip
