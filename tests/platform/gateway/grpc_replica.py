"""A replica that is a real grpc.aio server, and calls to it through a gateway."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.platform.gateway.linked import Linked, linked
from tests.platform.gateway.test_link import free_port

from pilotlight.gateway.routing_table import Backend, Replica, Route

ANY_SIZE = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
LOCAL = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), *ANY_SIZE)
Code = grpc.StatusCode


@dataclass
class GrpcReplica:
    """Knows one service of four kinds of methods; messages are bytes."""

    name: str
    port: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    kill: Callable[[], Awaitable[None]] = field(init=False)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def config(self) -> Replica:
        return Replica(self.name, 1, grpc_port=self.port)

    def note(self, context: Any) -> None:
        told: list[tuple[str, Any]] = list(context.invocation_metadata())
        self.calls.append({"metadata": dict(told), "left": context.time_remaining()})

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.note(context)
        await context.send_initial_metadata((("x-first", "a"), ("x-bin", b"\x00\xff")))
        context.set_trailing_metadata((("x-last", "b"), ("x-last-bin", b"\xff\x00")))
        return self.name.encode() + b":" + request

    async def slow(self, request: bytes, context: Any) -> bytes:
        self.note(context)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return request

    async def failing(self, request: bytes, context: Any) -> bytes:
        await context.abort(Code.FAILED_PRECONDITION, "not füll", (("x-why", "because"),))
        raise AssertionError

    async def numbers(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield str(number).encode()
        if request == b"3":
            await context.abort(Code.DATA_LOSS, "after three")

    async def total(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return str(sum([int(each) async for each in requests])).encode()

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for each in requests:
            yield each.upper()

    def handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            "test.Service",
            {
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "Slow": grpc.unary_unary_rpc_method_handler(self.slow),
                "Failing": grpc.unary_unary_rpc_method_handler(self.failing),
                "Numbers": grpc.unary_stream_rpc_method_handler(self.numbers),
                "Total": grpc.stream_unary_rpc_method_handler(self.total),
                "Chat": grpc.stream_stream_rpc_method_handler(self.chat),
            },
        )


@asynccontextmanager
async def grpc_replica(name: str = "r1") -> AsyncIterator[GrpcReplica]:
    made = GrpcReplica(name)
    server = grpc.aio.server(handlers=(made.handlers(),), options=(("grpc.so_reuseport", 0), *ANY_SIZE))
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.kill = lambda: server.stop(None)
    try:
        yield made
    finally:
        made.open.set()
        await server.stop(None)


@asynccontextmanager
async def channel(port: int, host: str = "127.0.0.1") -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=LOCAL) as opened:
        yield opened


def unary(opened: Any, method: str = "Unary") -> Any:
    return opened.unary_unary(f"/test.Service/{method}")


def route(port: int, *replicas: Replica, backends: tuple[Backend, ...] = (), **more: Any) -> Route:
    one = Backend("iris-1", "iris-predictor", 100, replicas, concurrency=more.pop("concurrency", 0))
    return Route("default", "iris", backends or (one,), grpc_port=port, **more)


@asynccontextmanager
async def serving(folder: Path, *replicas: GrpcReplica, **more: Any) -> AsyncIterator[tuple[Linked, int]]:
    port = free_port()
    async with linked(folder) as made:
        applied = await made.publish(route(port, *(each.config for each in replicas), **more))
        assert applied.failed == ()
        yield made, port


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()
