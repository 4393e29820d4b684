"""Bodies count as they arrive: what a client only announces keeps nobody out, and bodies that together exceed the
budget are refused one by one instead of waiting for each other."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.predictor.frontends.http.test_response_budget import BUDGET, MIB, Bench, play, read

from pilotlight_predictor.frontends.http.messages import HttpResponse


def post(length: int, sent: int = 0) -> bytes:
    return b"POST /later HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length + bytes(sent)


async def send(client: socket.socket, size: int) -> None:
    await asyncio.get_running_loop().sock_sendall(client, bytes(size))


async def serve_waiting(bench: Bench) -> None:
    await eventually_async(lambda: bool(bench.waiting))
    bench.waiting.pop().finish(HttpResponse(200, [b"served"]))


def test_announced_bodies_that_do_not_come_keep_nobody_out() -> None:
    async def scene(bench: Bench) -> None:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(await bench.client(post(BUDGET - MIB, 9)))
            await eventually_async(lambda: bench.held == 8 * 9)
            with await bench.client(post(2 * MIB, 2 * MIB)) as victim:
                await serve_waiting(bench)
                assert (await read(victim, 1)).startswith(b"HTTP/1.1 200 ")
        await eventually_async(lambda: not bench.held)

    play(scene, [])


@pytest.mark.parametrize("length", [100_000, 10 * MIB], ids=["fed", "read in place"])
def test_a_body_counts_with_what_has_come(length: int) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(post(length, 5000)) as client:
            await eventually_async(lambda: bench.held == 5000)
            await send(client, 20_000)
            await eventually_async(lambda: bench.held == 25_000)
            await send(client, length - 25_000)
            await eventually_async(lambda: bool(bench.waiting))
            assert bench.held == length == len(bench.waiting[0].body)
            await serve_waiting(bench)
        await eventually_async(lambda: not bench.held)

    play(scene, [])


def test_of_bodies_that_together_exceed_the_budget_one_is_refused_and_the_others_go_on() -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(post(11 * MIB)) as one, await bench.client(post(11 * MIB)) as other:
            await send(one, 10 * MIB)
            await eventually_async(lambda: bench.held == 10 * MIB)
            await send(other, 9 * MIB)
            await eventually_async(lambda: bench.held == 19 * MIB)
            await send(other, 2 * MIB)  # what comes after the refusal is discarded: its client can read the response
            answer = await read(other, 1)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in answer
            assert b"(--max-bytes-in-flight)" in answer
            assert await read(other, 1) == b""  # closed
            assert bench.held == 10 * MIB
            await send(one, MIB)
            await serve_waiting(bench)
            assert (await read(one, 1)).startswith(b"HTTP/1.1 200 ")
        await eventually_async(lambda: not bench.held)

    play(scene, [])


def test_a_body_that_cannot_fit_is_refused_before_it_is_sent() -> None:
    async def scene(bench: Bench) -> None:
        with await bench.client(post(BUDGET + MIB)) as client:
            answer: Any = await read(client, 1)
            assert answer.startswith(b"HTTP/1.1 503 ")
            await send(client, BUDGET + MIB)
            assert await read(client, 1) == b""
            assert not bench.held

    play(scene, [])
