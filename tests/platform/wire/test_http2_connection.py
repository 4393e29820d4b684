"""The server's side of HTTP/2, fed with bytes: what it opens, answers and refuses."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.wire.http2_harness import BLOCK, START, House, cut, fault, head, settled

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.connection import MAX_STREAMS
from pilotlight.wire.http2.frames import MAX_BLOCK, MAX_FIELDS, ConnectionFault, frame
from pilotlight.wire.http2.hpack import indexed, literal
from pilotlight.wire.http2.streams import CONNECTION_WINDOW, MAX_CUT_OFF, MAX_FRAME, STREAM_WINDOW


@pytest.fixture
def house() -> House:
    return settled()


def test_it_begins_with_settings_and_acknowledges_those_of_the_peer() -> None:
    said = House().hear(START)
    assert [kind for kind, _, _, _ in said] == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.SETTINGS]
    assert said[2][1] == frames.ACK
    assert dict(frames.read_settings(said[0][3]))[frames.MAX_CONCURRENT_STREAMS] == MAX_STREAMS


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_request_is_the_same_in_pieces_of_any_size(size: int) -> None:
    house = House()
    data = START + head(1) + frame(frames.DATA, 0, 1, b"one ") + frame(frames.DATA, frames.END_STREAM, 1, b"two")
    for at in range(0, len(data), size):
        house.connection.receive(data[at : at + size])
    assert house.opened[1].body == b"one two"
    assert house.opened[1].ended
    assert house.heads[0][0][3] == ("a", "b")


def test_padding_and_priority_are_taken_off(house: House) -> None:
    padded = head(1, frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY, b"\x02" + bytes(5) + BLOCK + bytes(2))
    house.hear(padded, frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x03body" + bytes(3)))
    assert (house.opened[1].body, house.opened[1].ended) == (b"body", True)


def test_a_block_may_come_in_several_frames(house: House) -> None:
    parts = [frame(frames.CONTINUATION, 0, 1, BLOCK[2:4]), frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK[4:])]
    house.hear(head(1, frames.END_STREAM, BLOCK[:2]), *parts)
    assert house.opened[1].ended
    assert house.heads[0][0][3] == ("a", "b")


def test_a_block_that_comes_again_is_not_read_again_until_the_table_changes(house: House) -> None:
    house.hear(head(1), head(3), head(5))
    assert house.reads == 1
    house.hear(head(7, block=BLOCK + literal("c", "d", index=True)), head(9))
    assert house.reads == 3
    assert house.heads[0] == house.heads[4]


def test_one_index_means_another_field_after_the_table_has_changed(house: House) -> None:
    known = BLOCK + indexed(62)
    house.hear(head(1, block=BLOCK + literal("c", "1", index=True)), head(3, block=known))
    house.hear(head(5, block=BLOCK + literal("c", "2", index=True)), head(7, block=known))
    assert [each[0][4] for each in house.heads] == [("c", "1"), ("c", "1"), ("c", "2"), ("c", "2")]


def test_fields_that_are_too_large_are_told_to_the_guest(house: House) -> None:
    house.hear(head(1, block=BLOCK + literal("x", "y" * MAX_FIELDS)))
    assert house.heads[0][1] is False


def test_pings_are_answered_and_unknown_frames_overlooked(house: House) -> None:
    said = house.hear(
        frame(99, 7, 1, b"what"), frame(frames.PING, 0, 0, b"12345678"), frame(frames.PRIORITY, 0, 5, bytes(5))
    )
    assert said == [(frames.PING, frames.ACK, 0, b"12345678")]


def test_trailers_of_a_request_end_it(house: House) -> None:
    house.hear(
        head(1), frame(frames.DATA, 0, 1, b"x"), head(1, frames.END_HEADERS | frames.END_STREAM, literal("t", "1"))
    )
    assert house.opened[1].ended
    assert len(house.opened) == 1


def test_pseudo_headers_in_trailers_reset_the_stream(house: House) -> None:
    ends = frames.END_HEADERS | frames.END_STREAM
    said = house.hear(head(1), head(1, ends, literal(":path", "/other")), head(3), head(3, ends, literal("a", "b")))
    assert said == [(frames.RST_STREAM, 0, 1, struct.pack(">I", frames.PROTOCOL_ERROR))]
    assert house.opened[1].is_gone
    assert house.opened[3].ended


def test_trailers_keep_the_table_in_step(house: House) -> None:
    """Those of a stream that was reset too: both sides have decoded them."""
    house.hear(head(1))
    house.connection.reset(house.opened[1], frames.NO_ERROR)
    house.hear(head(1, frames.END_HEADERS | frames.END_STREAM, literal("c", "d", index=True)))
    house.hear(head(3, block=BLOCK + indexed(62)))
    assert house.heads[1][0][4] == ("c", "d")


@pytest.mark.parametrize("close", ["end", "reset"])
def test_frames_of_a_stream_that_its_client_has_closed_are_errors(house: House, close: str) -> None:
    if close == "end":
        house.hear(head(1, frames.END_HEADERS | frames.END_STREAM))
        house.connection.out.end(house.opened[1], b"\x88")
        house.said()
    else:
        house.hear(head(1), frames.rst_stream(1, frames.CANCEL))
    assert house.hear(frame(frames.DATA, 0, 1, b"x")) == [
        (frames.RST_STREAM, 0, 1, struct.pack(">I", frames.STREAM_CLOSED))
    ]
    assert fault(house, head(1, frames.END_HEADERS | frames.END_STREAM)) == frames.STREAM_CLOSED


def test_frames_that_cross_a_reset_of_the_server_are_overlooked(house: House) -> None:
    """Also after so many resets that the oldest is forgotten."""
    for number in range(1, 2 * MAX_CUT_OFF + 5, 2):
        house.hear(head(number))
        house.connection.reset(house.opened[number], frames.NO_ERROR)
        house.said()
    ends = frames.END_HEADERS | frames.END_STREAM
    for number in (1, 2 * MAX_CUT_OFF + 3):
        assert house.hear(frame(frames.DATA, 0, number, b"x"), head(number, ends, literal("a", "b"))) == []


def test_a_stream_number_below_the_last_is_an_error(house: House) -> None:
    house.hear(head(5))
    assert fault(house, head(3)) == frames.STREAM_CLOSED


def test_a_reset_tells_the_stream_and_later_frames_of_it_are_overlooked(house: House) -> None:
    house.hear(head(1), frames.rst_stream(1, frames.CANCEL))
    assert house.opened[1].is_gone
    house.hear(frame(frames.DATA, 0, 1, b"late"), frames.window_update(1, 5), frames.rst_stream(1, frames.CANCEL))
    assert house.opened[1].body == b""


def test_a_lost_connection_tells_every_stream(house: House) -> None:
    house.hear(head(1), head(3))
    house.connection.drop_streams()
    assert house.opened[1].is_gone
    assert house.opened[3].is_gone


def test_more_streams_than_agreed_are_refused(house: House) -> None:
    numbers = range(1, 2 * MAX_STREAMS + 2, 2)
    said = house.hear(*(head(number) for number in numbers))
    assert said == [(frames.RST_STREAM, 0, numbers[-1], frames.REFUSED_STREAM.to_bytes(4, "big"))]


def test_who_leaves_serves_what_comes_until_the_peer_knows(house: House) -> None:
    house.hear(head(1))
    house.connection.announce_shutdown()
    (kind, _, _, payload), (ping, _, _, opaque) = house.said()
    assert (kind, ping, payload[:4]) == (frames.GOAWAY, frames.PING, frames.UINT31_MAX.to_bytes(4, "big"))
    house.hear(head(3), frame(frames.PING, frames.ACK, 0, b"anything"))
    assert (3 in house.opened, house.knows) == (True, False)
    house.hear(frame(frames.PING, frames.ACK, 0, opaque))
    assert house.knows


def test_who_departs_finishes_streams_and_refuses_further_ones(house: House) -> None:
    house.hear(head(1))
    house.connection.shutdown()
    ((kind, _, _, payload),) = house.said()
    assert (kind, payload[:8]) == (frames.GOAWAY, bytes([0, 0, 0, 1, 0, 0, 0, 0]))
    assert house.hear(head(3), frame(frames.DATA, frames.END_STREAM, 1, b"x"))[0][0] == frames.RST_STREAM
    assert house.opened[1].body == b"x"
    assert 3 not in house.opened


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (frames.PROTOCOL_ERROR, head(2)),
        (frames.PROTOCOL_ERROR, head(0)),
        (frames.PROTOCOL_ERROR, head(5) + frame(frames.DATA, 0, 7, b"x")),
        (frames.PROTOCOL_ERROR, frame(frames.DATA, 0, 0, b"x")),
        (frames.PROTOCOL_ERROR, frames.rst_stream(9, 0)),
        (frames.PROTOCOL_ERROR, frames.window_update(9, 1)),
        (frames.PROTOCOL_ERROR, frames.window_update(0, 0)),
        (frames.FLOW_CONTROL_ERROR, frames.window_update(0, frames.UINT31_MAX)),
        (frames.PROTOCOL_ERROR, frame(frames.PUSH_PROMISE, 0, 1, bytes(8))),
        (frames.FRAME_SIZE_ERROR, frame(frames.PING, 0, 0, b"short")),
        (frames.PROTOCOL_ERROR, frame(frames.PING, 0, 1, bytes(8))),
        (frames.FRAME_SIZE_ERROR, frame(frames.SETTINGS, 0, 0, bytes(5))),
        (frames.FRAME_SIZE_ERROR, frame(frames.SETTINGS, frames.ACK, 0, bytes(6))),
        (frames.PROTOCOL_ERROR, frames.settings({frames.ENABLE_PUSH: 2})),
        (frames.PROTOCOL_ERROR, frames.settings({frames.MAX_FRAME_SIZE: 100})),
        (frames.FLOW_CONTROL_ERROR, frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31})),
        (frames.PROTOCOL_ERROR, frame(frames.CONTINUATION, frames.END_HEADERS, 1, BLOCK)),
        (frames.PROTOCOL_ERROR, head(1, 0) + head(3)),
        (frames.PROTOCOL_ERROR, head(1, 0) + frame(frames.DATA, 0, 1, b"x")),
        (frames.PROTOCOL_ERROR, head(1) + head(1)),
        (frames.PROTOCOL_ERROR, head(1, frames.END_HEADERS | frames.PADDED, b"\xff" + BLOCK)),
        (frames.PROTOCOL_ERROR, head(1) + frame(frames.DATA, frames.PADDED, 1, b"\x05abc")),
        (frames.STREAM_CLOSED, head(1, frames.END_HEADERS | frames.END_STREAM) + frame(frames.DATA, 0, 1, b"x")),
        (frames.COMPRESSION_ERROR, head(1, block=b"\xff")),
        (frames.FRAME_SIZE_ERROR, frames.HEAD.pack((MAX_FRAME + 1) << 8 | frames.DATA, 0, 1)),
        (frames.FRAME_SIZE_ERROR, frames.HEAD.pack((MAX_BLOCK + 1) << 8 | frames.HEADERS, 0, 1)),
        (frames.FRAME_SIZE_ERROR, frames.HEAD.pack((1 << 20) << 8 | frames.PING, 0, 0)),
    ],
    ids=lambda given: "" if isinstance(given, int) else given.hex()[:40],
)
def test_what_breaks_the_protocol_ends_the_connection(house: House, code: int, data: bytes) -> None:
    assert fault(house, data) == code


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", frames.PREFACE + head(1), frames.PREFACE + frame(frames.DATA, 0, 1)]
)
def test_what_does_not_begin_as_http2_is_refused(data: bytes) -> None:
    with pytest.raises(ConnectionFault):
        House().hear(data)


def test_a_window_that_grows_too_wide_resets_its_stream_alone(house: House) -> None:
    said = house.hear(head(1), head(3), frames.window_update(1, frames.UINT31_MAX), frames.window_update(3, 0))
    assert [each[:3] for each in said] == [(frames.RST_STREAM, 0, 1), (frames.RST_STREAM, 0, 3)]
    assert house.opened[1].is_gone


def test_more_data_than_the_windows_is_refused(house: House) -> None:
    piece = frame(frames.DATA, 0, 1, bytes(MAX_FRAME))
    house.hear(head(1), *[piece] * (STREAM_WINDOW // MAX_FRAME))
    assert fault(house, frame(frames.DATA, 0, 1, b"x")) == frames.FLOW_CONTROL_ERROR


def test_the_connection_may_send_on_for_ever(house: House) -> None:
    house.hear(head(1))
    granted = 0
    for _ in range(3 * CONNECTION_WINDOW // MAX_FRAME):
        house.opened[1].credit, house.opened[1].body = STREAM_WINDOW, b""
        said = house.hear(frame(frames.DATA, 0, 1, bytes(MAX_FRAME)))
        granted += sum(int.from_bytes(payload, "big") for kind, _, _, payload in said if kind == frames.WINDOW_UPDATE)
    assert granted >= 2 * CONNECTION_WINDOW


def test_a_setting_that_is_repeated_within_a_frame_counts_once_with_its_last_value(house: House) -> None:
    seen: list[int] = []
    house.on_table_size = seen.append  # type: ignore[method-assign]
    house.hear(
        frame(
            frames.SETTINGS, 0, 0, b"".join(struct.pack(">HI", frames.HEADER_TABLE_SIZE, size) for size in range(2730))
        )
    )
    assert seen == [2729]


FRAMES = [
    START,
    head(1),
    head(3, frames.END_HEADERS | frames.END_STREAM),
    head(5, 0),
    frame(frames.CONTINUATION, frames.END_HEADERS, 5, BLOCK),
    frame(frames.DATA, 0, 1, b"x" * 9),
    frame(frames.DATA, frames.END_STREAM, 1, b"y"),
    frames.rst_stream(1, 8),
    frames.window_update(0, 9),
    frames.window_update(1, 9),
    frame(frames.PING, 0, 0, bytes(8)),
    frames.settings({4: 10, 1: 0}),
    frame(frames.GOAWAY, 0, 0, bytes(8)),
    frame(frames.DATA, frames.PADDED, 1, b"\x01ab"),
    head(7, frames.END_HEADERS | frames.PADDED, b"\x01" + BLOCK + b"\0"),
]


def change(data: bytes, at: int, byte: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([byte]) + data[at + 1 :]


@given(
    parts=st.lists(
        st.sampled_from(FRAMES) | st.binary(max_size=30)
        | st.builds(change, st.sampled_from(FRAMES), st.integers(0, 99), st.integers(0, 255)),
        max_size=12,
    ),
    pieces=st.integers(1, 50),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_no_bytes_are_our_mistake(parts: list[bytes], pieces: int) -> None:
    """Either they are taken, or the connection ends by the one exception that says why; streams are told."""
    house, data = House(), START + b"".join(parts)
    try:
        for at in range(0, len(data), pieces):
            house.connection.receive(data[at : at + pieces])
    except ConnectionFault as fault:
        house.connection.fail(fault)
    house.connection.drop_streams()
    assert not house.connection.streams
    list(cut(b"".join(house.connection.out.take_frames())))
