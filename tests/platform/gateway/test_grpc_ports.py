"""Ports of gRPC at a real gateway: bound, taken by others, released."""

import os
import signal
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.eventually import eventually_async
from tests.platform.gateway.grpc_replica import channel, grpc_replica, route, serving, unary
from tests.platform.gateway.linked import in_loop, linked

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.grpc_proxy import GrpcProxy
from pilotlight.gateway.listeners import Address, CannotListen
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.targets.local.gateway import gateway_link


@in_loop
async def test_both_loopback_addresses_are_served(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one) as (made, port):
        for host in ["127.0.0.1", *(["[::1]"] if len(made.link.addresses) > 2 else [])]:
            async with channel(port, host) as opened:
                assert await unary(opened)(b"x") == b"r1:x"


@in_loop
async def test_a_port_comes_back_after_a_kill_and_goes_with_its_service(tmp_path: Path) -> None:
    async with grpc_replica() as one, serving(tmp_path, one) as (made, port):
        async with channel(port) as opened:
            assert await unary(opened)(b"1") == b"r1:1"
        os.kill(made.link.pid, signal.SIGKILL)
        async with channel(port) as opened:
            assert await unary(opened)(b"2", wait_for_ready=True, timeout=60) == b"r1:2"
        await made.publish()
        await eventually_async(lambda: not listens(port), "let go")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@in_loop
async def test_a_taken_port_is_told_and_bound_once_it_is_free(tmp_path: Path) -> None:
    server = grpc.aio.server()  # shares its port with whoever of this user does the same
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc_replica() as one, linked(tmp_path) as made:
        failed = (await made.publish(route(port, one.config))).failed
        assert any(f"port {port} on 127.0.0.1 is in use" in line for line in failed)
        await server.stop(None)
        async with channel(port) as opened:
            assert await unary(opened)(b"x", wait_for_ready=True, timeout=60) == b"r1:x"
        assert (await made.publish(route(port, one.config))).failed == ()


@in_loop
async def test_a_taken_port_delays_no_message() -> None:
    plane = DataPlane(lambda message: None, lambda message: None, AccessAdmission())
    proxy = GrpcProxy(plane, plane.admission, lambda message: None)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        starting = proxy.start(Address("127.0.0.1", holder.getsockname()[1], "grpc"), lambda: ("", ""))
        with pytest.raises(CannotListen, match="is in use"):
            starting.send(None)  # fails in its first step, so it waits for nothing
    await plane.drain(0.0)


@in_loop
async def test_a_taken_port_is_told_to_who_listens_also_if_a_table_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_link, "GRPC_RETRIES_S", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as holder:
        text = f"127.0.0.1:{holder.getsockname()[1]}/grpc"
        async with linked(tmp_path) as made:
            await made.publish()
            assert any(line.startswith(f"{text}: ") for line in await made.link.listen([text]))
            assert text not in made.link.addresses, "it is bound for nobody once it is free"
            await made.publish(route(holder.getsockname()[1]))
            assert any(line.startswith(f"{text}: ") for line in await made.link.listen([text]))
