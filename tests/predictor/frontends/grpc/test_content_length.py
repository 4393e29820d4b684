"""A content-length that DATA contradicts resets the call: two readers must not see two messages (RFC 9113, 8.1.1)."""

import pytest
from tests.predictor.frontends.grpc.connection_harness import House, call, data, framed, play

from pilotlight.wire.http2 import frames

RESET = [(frames.RST_STREAM, frames.PROTOCOL_ERROR.to_bytes(4, "big"))]
TRAILERS = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1)


@pytest.mark.parametrize(
    ("declared", "parts", "served"),
    [
        ("9", [data(1, framed(b"text"), ends=True)], True),
        ("9", [data(1, framed(b"text")[:3]), data(1, framed(b"text")[3:], ends=True)], True),
        ("9", [data(1, framed(b"text")), TRAILERS], True),
        ("8", [data(1, framed(b"text"), ends=True)], False),
        ("10", [data(1, framed(b"text"), ends=True)], False),
        ("10", [data(1, framed(b"text")), TRAILERS], False),
        ("4", [data(1, framed(b"text")[:5])], False),
        ("+9", [data(1, framed(b"text"), ends=True)], False),
        ("9, 9", [data(1, framed(b"text"), ends=True)], False),
        ("9" * 19, [data(1, framed(b"text"), ends=True)], False),
    ],
)
def test_data_must_be_as_long_as_content_length_says(declared: str, parts: list[bytes], served: bool) -> None:
    async def scene() -> None:
        house = House()
        house.hear(call(1, "Ask", ("content-length", declared)), *parts)
        assert house.answers(1) == ([b"text"] if served else [])
        assert served or house.said(1)[:1] == RESET
        assert house.admission.bytes_in_flight == 0

    play(scene)


def test_two_lengths_are_none() -> None:
    async def scene() -> None:
        house = House()
        house.hear(
            call(1, "Ask", ("content-length", "9"), ("content-length", "8")), data(1, framed(b"text"), ends=True)
        )
        assert house.said(1)[:1] == RESET

    play(scene)
