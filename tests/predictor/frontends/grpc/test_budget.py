"""Bytes in flight of gRPC: what waits counts, what is unpacked counts while it grows, and who finds no room is told."""

import asyncio
import gzip
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from tests.eventually import eventually_async
from tests.predictor.frontends.grpc.connection_harness import NO_ROOM, House, call, data, framed, play
from tritonclient.grpc import service_pb2

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import literal
from pilotlight_predictor.core.requests import SharedMemorySlice
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.frontends.grpc.message_reader import INLINE_BYTES, MESSAGE_OVERHEAD
from pilotlight_predictor.protocols.v2.grpc.infer_methods import LONG, infer
from pilotlight_predictor.server.handler_context import Server

GZIP = ("grpc-encoding", "gzip")
MIB = 1 << 20


def test_a_message_that_finds_no_room_is_counted_told_and_may_come_again() -> None:
    async def scene() -> None:
        house = House()
        house.admission.take(MIB - 100)
        house.hear(call(1), data(1, framed(bytes(200), 300)))
        assert house.status(1) == "14"
        assert literal("retry-after", "1") in house.said(1)[0][1]
        assert house.kitchen.counted == house.watched.told == [503]

    play(scene)


def test_bytes_that_are_no_message_are_counted_as_the_callers_mistake() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1), data(1, framed(b"x", 5), ends=True))
        assert house.status(1) == "13"
        assert house.kitchen.counted == house.watched.told == [400]

    play(scene)


def test_a_message_of_a_stream_that_finds_no_room_is_refused_alone_and_in_its_place() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Talk"), data(1, framed(b"first")))
        house.admission.take(MIB - 1000)
        house.hear(data(1, framed(bytes(950), 2000)), data(1, bytes(1050) + framed(b"third"), ends=True))
        await asyncio.sleep(1)
        assert house.answers(1) == [b"first", NO_ROOM, b"third"]
        assert house.kitchen.counted.count(503) == 1
        assert house.admission.bytes_in_flight == MIB - 1000

    play(scene)


def test_messages_that_come_together_are_refused_from_the_last_one_on() -> None:
    async def scene() -> None:
        house = House()
        house.admission.take(MIB - 1000)
        house.hear(call(1, "Talk"), data(1, framed(bytes(500)) + framed(bytes(400)) + framed(bytes(300))))
        await asyncio.sleep(1)
        assert house.answers(1) == [bytes(500), NO_ROOM, NO_ROOM]
        assert house.status(1) == ""

    play(scene)


def test_small_messages_that_wait_count_for_more_than_their_bytes() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Talk"), data(1, framed(b"x") * 100))
        assert house.admission.bytes_in_flight == 100 * (1 + MESSAGE_OVERHEAD)
        await asyncio.sleep(1)
        assert (house.admission.bytes_in_flight, len(house.answers(1))) == (0, 100)

    play(scene)


def test_a_message_that_becomes_large_leaves_the_loop_to_others_and_is_answered() -> None:
    async def scene() -> None:
        house, plain = House(lambda call: b"%d" % len(call.body), 64 * MIB), bytes(16 * MIB)
        house.hear(call(1, "Ask", GZIP), data(1, framed(gzip.compress(plain, 1), packed=1), ends=True))
        assert house.answers(1) == []
        await eventually_async(lambda: house.answers(1))
        assert house.answers(1) == [b"%d" % len(plain)]
        assert house.admission.bytes_in_flight == 0

    asyncio.run(scene())


def test_a_message_that_grows_beyond_the_room_there_is_goes_no_further() -> None:
    async def scene() -> None:
        house = House(budget=64 * MIB)
        house.admission.take(60 * MIB)
        house.hear(call(1, "Ask", GZIP), data(1, framed(gzip.compress(bytes(60 * MIB)), packed=1), ends=True))
        assert 60 * MIB + INLINE_BYTES < house.admission.bytes_in_flight < 64 * MIB
        await eventually_async(lambda: house.status(1))
        assert (house.status(1), house.kitchen.counted) == ("14", [503])
        assert house.admission.bytes_in_flight == 60 * MIB

    asyncio.run(scene())


def test_messages_of_a_stream_are_unpacked_in_their_order_and_refused_alone() -> None:
    async def scene() -> None:
        house = House(budget=64 * MIB)
        house.admission.take(60 * MIB)
        sizes = (100, 60 * MIB, 200)
        packed = [framed(gzip.compress(bytes(size), 1), packed=1) for size in sizes]
        house.hear(
            call(1, "Talk", GZIP),
            *(data(1, each[at : at + 1000]) for each in packed for at in range(0, len(each), 1000)),
        )
        await eventually_async(lambda: len(house.answers(1)) == 3)
        assert house.answers(1) == [bytes(100), NO_ROOM, bytes(200)]
        assert house.admission.bytes_in_flight == 60 * MIB

    asyncio.run(scene())


def test_a_message_that_a_thread_reads_counts_until_it_has_read_although_the_client_has_gone() -> None:
    reads, go_on = threading.Event(), threading.Event()

    def find(_: SharedMemorySlice) -> memoryview:
        reads.set()
        assert go_on.wait(60)
        return memoryview(bytearray(4))

    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(LONG)])
    request.inputs.add(name="x", datatype="FP32", shape=[LONG // 4])
    shared = request.inputs.add(name="y", datatype="FP32", shape=[1])
    shared.parameters["shared_memory_region"].string_param = "r"
    shared.parameters["shared_memory_byte_size"].int64_param = 4
    message = framed(request.SerializeToString())
    pieces = [message[at : at + (1 << 18)] for at in range(0, len(message), 1 << 18)]

    async def scene() -> None:
        model, memory = SimpleNamespace(check_input=lambda *_: None), SimpleNamespace(find=find)
        server = cast(Server, SimpleNamespace(codecs=ThreadLimiter(1), shared_memory=memory, find=lambda *_: model))
        house = House(lambda call: infer(server, call), 64 * MIB)
        house.hear(call(1), *(data(1, piece, ends=piece is pieces[-1]) for piece in pieces))
        await eventually_async(reads.is_set)
        house.hear(frames.rst_stream(1, frames.CANCEL))
        await eventually_async(lambda: house.watched.told == [499])
        assert house.admission.bytes_in_flight == len(message) - 5
        go_on.set()
        await eventually_async(lambda: house.admission.bytes_in_flight == 0)

    asyncio.run(scene())


def test_a_response_counts_until_its_client_takes_it() -> None:
    """The connection's window is 64 KiB: the rest waits, and the socket may not take what has left."""

    async def scene() -> None:
        house = House(lambda call: bytes(MIB // 2))
        house.hear(call(1), data(1, framed(b"x"), ends=True))
        assert house.admission.bytes_in_flight == MIB // 2
        house.line.pause_writing()
        house.hear(frames.window_update(0, MIB))
        house.line.resume_writing()
        await asyncio.sleep(0)
        assert (house.status(1), house.admission.bytes_in_flight) == ("0", 0)

    asyncio.run(scene())


def test_a_response_counts_while_the_socket_has_not_taken_its_last_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        house = House(lambda call: bytes(MIB // 2))
        house.hear(call(1), data(1, framed(b"x"), ends=True))
        unsent = house.admission.bytes_in_flight
        monkeypatch.setattr(house.wire, "writelines", lambda _: house.line.pause_writing(), raising=False)
        house.hear(frames.window_update(0, MIB))
        assert house.admission.bytes_in_flight == unsent
        house.line.resume_writing()
        assert house.admission.bytes_in_flight == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    "end",
    [lambda house: house.hear(frames.rst_stream(1, frames.CANCEL)), lambda house: house.line.connection_lost(None)],
    ids=["reset", "lost"],
)
def test_an_unread_response_is_released_when_its_client_goes(end: Callable[[House], None]) -> None:
    async def scene() -> None:
        house = House(lambda call: bytes(MIB // 2))
        house.hear(call(1), data(1, framed(b"x"), ends=True))
        assert house.admission.bytes_in_flight > MIB // 3
        end(house)
        assert house.admission.bytes_in_flight == 0

    asyncio.run(scene())


def test_a_response_for_which_the_budget_does_not_suffice_is_unavailable() -> None:
    async def scene() -> None:
        house = House(lambda call: bytes(MIB // 2))
        for number in (1, 3, 5):
            house.hear(call(number), data(number, framed(b"x"), ends=True))
        assert [house.status(number) for number in (1, 3, 5)] == ["", "", "14"]
        assert house.admission.bytes_in_flight <= MIB

    asyncio.run(scene())
