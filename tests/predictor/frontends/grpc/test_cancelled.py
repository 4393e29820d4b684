"""Calls whose client leaves: whenever that is, each is told and counted once, and nothing of it goes on."""

import asyncio
import gc
from collections.abc import Awaitable

import pytest
from tests.predictor.frontends.grpc.connection_harness import House, call, data, framed, play

from pilotlight.wire.http2 import frames
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest

BEGUN = pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "while it waits"])


def never(_: GrpcRequest) -> Awaitable[bytes]:
    async def wait() -> bytes:
        await asyncio.Event().wait()
        return b""

    return wait()


@BEGUN
@pytest.mark.filterwarnings("error")
def test_a_call_that_is_cancelled_is_told_and_counted_once(begun: bool) -> None:
    async def scene() -> None:
        house = House(never)
        house.hear(call(1), data(1, framed(b"x"), ends=True))
        if begun:
            await asyncio.sleep(1)
            assert house.desk.in_flight == 1
        house.hear(frames.rst_stream(1, frames.CANCEL))
        await asyncio.sleep(1)
        assert house.kitchen.counted == house.watched.told == [499]
        assert (house.desk.in_flight, house.admission.bytes_in_flight) == (0, 0)

    play(scene)
    gc.collect()


def test_a_deadline_that_passes_is_told_as_one() -> None:
    async def scene() -> None:
        house = House(never)
        house.hear(call(1, "Ask", ("grpc-timeout", "1S")), data(1, framed(b"x"), ends=True))
        await asyncio.sleep(2)
        assert house.status(1) == "4"
        assert house.kitchen.counted == house.watched.told == [504]

    play(scene)


@BEGUN
def test_a_stream_that_is_cancelled_is_told(begun: bool) -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Talk"), data(1, framed(b"x")))
        if begun:
            await asyncio.sleep(1)
        house.hear(frames.rst_stream(1, frames.CANCEL))
        await asyncio.sleep(1)
        assert house.watched.told == [499]

    play(scene)
