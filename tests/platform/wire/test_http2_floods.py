"""Peers that cost more than they bring are ended, and honest ones that look like them are not."""

from collections.abc import Callable

import pytest
from tests.platform.wire.http2_harness import BLOCK, House, fault, head, settled

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.connection import MAX_STREAMS
from pilotlight.wire.http2.frames import MANY_FIELDS, MAX_FIELDS, MAX_TOKENS, frame
from pilotlight.wire.http2.hpack import literal


@pytest.fixture
def house() -> House:
    return settled()


@pytest.mark.parametrize(
    "nuisance",
    [
        frame(frames.PING, 0, 0, bytes(8)),
        frames.settings({}),
        frame(frames.SETTINGS, frames.ACK, 0),
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        frame(frames.DATA, 0, 1, b""),
        frame(77, 0, 0, b""),
        frame(frames.GOAWAY, 0, 0, bytes(8)),
    ],
    ids=["ping", "settings", "acknowledgement", "priority", "empty", "unknown", "goaway"],
)
def test_a_flood_of_frames_that_ask_for_nothing_ends_the_connection(house: House, nuisance: bytes) -> None:
    house.hear(head(1), nuisance * (int(MAX_TOKENS) - 10))
    assert fault(house, nuisance * 20) == frames.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "reset", [lambda number: frames.rst_stream(number, frames.CANCEL), lambda number: frames.window_update(number, 0)],
    ids=["by the peer", "by us"],
)  # fmt: skip
def test_streams_that_are_opened_and_reset_at_once_end_the_connection(
    house: House, reset: Callable[[int], bytes]
) -> None:
    """The second has us do what the first does: a mistake that only its stream pays for."""
    pairs = [head(number) + reset(number) for number in range(1, 2 * int(MAX_TOKENS) + 200, 2)]
    assert fault(house, *pairs) == frames.ENHANCE_YOUR_CALM
    assert not house.connection.streams


def test_calls_that_are_given_up_after_a_while_cost_nothing(house: House) -> None:
    """As those of a client whose deadlines pass: 500 a second, each 50 ms old."""
    for count in range(5 * int(MAX_TOKENS)):
        house.now = count / 500
        house.hear(head(2 * count + 1))
        if count >= 25:
            house.hear(frames.rst_stream(2 * count - 49, frames.CANCEL))
    assert len(house.opened) == 5 * int(MAX_TOKENS)


@pytest.mark.parametrize(("size", "ends"), [(1 << 14, False), (10, True)], ids=["large", "small"])
def test_data_of_calls_that_are_over_costs_where_it_is_small(house: House, size: int, ends: bool) -> None:
    house.hear(head(1))
    house.connection.reset(house.opened[1], frames.NO_ERROR)
    stray = [frame(frames.DATA, 0, 1, bytes(size))] * (2 * int(MAX_TOKENS))
    if ends:
        assert fault(house, *stray) == frames.ENHANCE_YOUR_CALM
    else:
        house.hear(*stray, head(3))
        assert 3 in house.opened


def test_long_header_blocks_are_paid_for_by_their_length(house: House) -> None:
    long = BLOCK + literal("x", "y" * (MAX_FIELDS - 200))
    heads = [head(number, frames.END_HEADERS | frames.END_STREAM, long) for number in range(1, int(MAX_TOKENS) // 2, 2)]
    assert fault(house, *heads) == frames.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("block", [BLOCK + b"\x82" * 1000, b"\x20" * 1000 + BLOCK], ids=["fields", "table sizes"])
def test_short_header_blocks_are_paid_for_by_their_fields(house: House, block: bytes) -> None:
    tokens = len(block) // MANY_FIELDS
    heads = [head(number, frames.END_HEADERS, block + b"\x10\1x\1%c" % number) for number in range(1, 256, 2)]
    house.hear(*heads[: int(MAX_TOKENS) // tokens])
    assert fault(house, *heads[int(MAX_TOKENS) // tokens :]) == frames.ENHANCE_YOUR_CALM


def test_a_header_block_far_beyond_the_limit_is_not_decoded_to_its_end(house: House) -> None:
    reads = house.reads
    assert fault(house, head(1, frames.END_HEADERS, BLOCK + b"\x82" * 16_000)) == frames.ENHANCE_YOUR_CALM
    assert house.reads == reads


def test_metadata_of_some_kilobytes_is_earned_by_its_answer(house: House) -> None:
    block = BLOCK + literal("authorization", "y" * 8000)
    for number in range(1, 4 * int(MAX_TOKENS), 2):
        house.hear(head(number, frames.END_HEADERS | frames.END_STREAM, block))
        house.connection.out.end(house.opened[number], b"\x88")
    assert len(house.opened) == 2 * int(MAX_TOKENS)


def test_windows_that_are_widened_byte_by_byte_end_the_connection(house: House) -> None:
    house.hear(head(1), frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    house.connection.out.data(house.opened[1], bytes(1 << 16))
    assert fault(house, frames.window_update(1, 1) * (int(MAX_TOKENS) + 100)) == frames.ENHANCE_YOUR_CALM


def test_a_client_that_grants_some_bytes_for_each_call_may_have_many_at_once(house: House) -> None:
    for number in range(1, 2 * MAX_STREAMS, 2):
        house.hear(head(number), frames.window_update(number, 5), frames.window_update(0, 5))
    assert len(house.connection.streams) == MAX_STREAMS


def test_a_client_that_grants_what_it_has_read_frame_by_frame_is_served_on(house: House) -> None:
    house.hear(head(1))
    for _ in range(3 * int(MAX_TOKENS)):
        house.connection.out.data(house.opened[1], bytes(20))
        house.hear(frames.window_update(0, 20), frames.window_update(1, 20))
    assert 1 in house.connection.streams


def test_a_client_that_pings_for_each_answer_is_served_on(house: House) -> None:
    for number in range(1, 6 * int(MAX_TOKENS), 2):
        house.hear(head(number, frames.END_HEADERS | frames.END_STREAM), frame(frames.PING, 0, 0, bytes(8)))
        house.connection.out.end(house.opened[number], b"\x88")
    assert len(house.opened) == 3 * int(MAX_TOKENS)


def test_a_header_block_without_end_is_not_gathered(house: House) -> None:
    more = frame(frames.CONTINUATION, 0, 1, bytes(1 << 14))
    assert fault(house, head(1, 0), *[more] * 5) == frames.ENHANCE_YOUR_CALM
