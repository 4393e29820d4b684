"""Clients that begin something and leave it there: nothing of theirs is held for ever."""

import asyncio

import pytest
from tests.predictor.frontends.grpc.connection_harness import House, call, data, framed, play

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.frames import MAX_TOKENS
from pilotlight_predictor.frontends.grpc.connection import LINGER_S
from pilotlight_predictor.frontends.tasks_and_timeouts import SCARCE_S, SLOW_S

MINUTE = 60.0


def test_a_message_that_stops_arriving_gives_its_bytes_back_and_is_counted() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1), data(1, framed(bytes(1000), 2000)))
        assert house.admission.bytes_in_flight == 1000
        await asyncio.sleep(MINUTE)
        assert house.admission.bytes_in_flight == 0
        assert house.status(1) == "1"
        assert house.kitchen.counted == house.watched.told == [499]

    play(scene)


def test_a_message_that_has_come_but_whose_call_does_not_end_is_not_held_either() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1), data(1, framed(bytes(1000))))
        await asyncio.sleep(MINUTE)
        assert (house.admission.bytes_in_flight, house.status(1)) == (0, "1")

    play(scene)


def test_a_message_that_goes_on_arriving_is_waited_for() -> None:
    """As over HTTP: as long as 16 KiB a second come in every period."""

    async def scene() -> None:
        house = House(lambda call: b"%d" % len(call.body), budget=1 << 22)
        house.hear(call(1), data(1, framed(b"", 1 << 20)))
        for _ in range(8):
            await asyncio.sleep(SLOW_S / 4)
            house.hear(data(1, bytes(1 << 17)))
        house.hear(data(1, b"", ends=True))
        assert house.answers(1) == [b"%d" % (1 << 20)]
        assert house.admission.bytes_in_flight == 0

    play(scene)


def test_what_has_come_of_a_message_is_no_credit_for_a_stall() -> None:
    async def scene() -> None:
        house = House(budget=1 << 22)
        house.hear(call(1), data(1, framed(b"", 1 << 20)), *[data(1, bytes(1 << 17))] * 7)
        assert house.admission.bytes_in_flight == 7 << 17
        await asyncio.sleep(SLOW_S + 3 * SCARCE_S)  # at the least rate, so many bytes take longer
        assert (house.admission.bytes_in_flight, house.status(1)) == (0, "1")

    play(scene)


def test_a_message_that_stalls_is_given_up_sooner_while_memory_is_scarce() -> None:
    async def scene() -> None:
        house = House(budget=1 << 18)
        house.hear(call(1), data(1, framed(b"", 1 << 18)), data(1, bytes(200_000)))
        assert house.admission.bytes_in_flight == 200_000
        await asyncio.sleep(3 * SCARCE_S + 1)
        assert (house.admission.bytes_in_flight, house.status(1)) == (0, "1")

    play(scene)


def test_a_stream_may_be_silent_between_messages_but_not_within_one() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Talk"), data(1, framed(bytes(100), 200)), data(1, bytes(100)))
        await asyncio.sleep(10 * MINUTE)
        assert house.status(1) == ""
        house.hear(data(1, framed(bytes(1000), 2000)))
        assert house.admission.bytes_in_flight == 1000
        await asyncio.sleep(MINUTE)
        assert (house.admission.bytes_in_flight, house.status(1)) == (0, "1")

    play(scene)


def test_the_deadline_of_a_call_runs_while_its_message_arrives() -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Ask", ("grpc-timeout", "1S")), data(1, framed(bytes(1000), 2000)))
        await asyncio.sleep(2)
        assert (house.admission.bytes_in_flight, house.status(1)) == (0, "4")
        assert house.kitchen.counted == house.watched.told == [504]

    play(scene)


def test_answers_that_nobody_takes_are_dropped_and_those_that_move_are_kept() -> None:
    async def scene() -> None:
        house = House()
        house.hear(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}), *(call(number) for number in (1, 3)))
        house.hear(*(data(number, framed(bytes(1000)), ends=True) for number in (1, 3)))
        for _ in range(5):
            await asyncio.sleep(SLOW_S / 2)
            house.hear(frames.window_update(3, 100))
        assert (frames.RST_STREAM, frames.CANCEL.to_bytes(4, "big")) in house.said(1)
        assert list(house.line.http.streams) == [3]
        assert list(house.line.http.out.backlog()) == [3]
        house.hear(frames.window_update(3, 1000))
        assert house.answers(3) == [bytes(1000)]
        assert not house.line.http.streams

    play(scene)


def test_a_stream_whose_answers_nobody_takes_ends() -> None:
    async def scene() -> None:
        house = House()
        house.hear(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}), call(1, "Talk"), data(1, framed(b"x")))
        await asyncio.sleep(MINUTE)
        assert not house.line.http.streams
        assert house.desk.in_flight == 0

    play(scene)


def test_a_connection_that_is_closed_does_not_wait_for_a_client_that_does_not_read() -> None:
    async def scene() -> None:
        house = House()
        house.line.close()
        assert (house.wire.closed, house.wire.aborted) == (True, False)
        await asyncio.sleep(MINUTE)
        assert house.wire.aborted

    play(scene)


def test_a_connection_that_has_closed_in_time_is_left_alone() -> None:
    async def scene() -> None:
        house = House()
        house.line.close()
        house.line.connection_lost(None)
        await asyncio.sleep(MINUTE)
        assert not house.wire.aborted

    play(scene)


def test_heads_that_are_no_requests_are_paid_for() -> None:
    """Each has us reset its stream."""

    async def scene() -> None:
        house = House()
        house.hear(*(call(number, "Ask", ("connection", "close")) for number in range(1, 4 * int(MAX_TOKENS), 2)))
        assert house.wire.closed
        assert frames.ENHANCE_YOUR_CALM.to_bytes(4, "big") == house.said(0)[-1][1][4:8]

    play(scene)


@pytest.mark.parametrize("answers", [True, False], ids=["says that it knows", "says nothing"])
def test_a_call_that_crosses_the_wish_that_its_client_goes_is_served(answers: bool) -> None:
    async def scene() -> None:
        house = House()
        house.desk.close()
        await asyncio.sleep(0)
        house.hear(call(1), data(1, framed(b"x"), ends=True))
        if answers:
            ping = next(payload for kind, payload in house.said(0) if kind == frames.PING)
            house.hear(frames.frame(frames.PING, frames.ACK, 0, ping))
        else:
            await asyncio.sleep(LINGER_S * 1.5)
        house.hear(call(3))
        assert house.answers(1) == [b"x"]
        assert [kind for kind, _ in house.said(3)] == [frames.RST_STREAM]
        await asyncio.sleep(MINUTE)
        assert house.wire.closed

    play(scene)
