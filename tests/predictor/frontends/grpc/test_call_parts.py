"""The parts of a call that need no connection: its head, its messages, and what stands around its answer."""

import asyncio
import gzip
import struct
import zlib
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.wire.http2.hpack import Decoder, HeaderField
from pilotlight_predictor.core.threads import ThreadLimiter
from pilotlight_predictor.errors import PredictorError, Unreadable
from pilotlight_predictor.frontends.grpc.headers import (
    KNOWN_DONE,
    KNOWN_HEAD,
    MAX_MESSAGE,
    CallHead,
    ResponseHeaderBlocks,
    percent_encoded,
    read_head,
)
from pilotlight_predictor.frontends.grpc.message_reader import (
    INLINE_BYTES,
    LARGE,
    MESSAGE_OVERHEAD,
    CompressedMessage,
    MessageQueue,
    Reassembler,
)

PSEUDO: list[HeaderField] = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "here")]
GRPC: HeaderField = ("content-type", "application/grpc")
TYPED, DONE = [(":status", "200"), GRPC], [("grpc-status", "0")]


def head(*fields: HeaderField) -> CallHead:
    return read_head([*PSEUDO, GRPC, *fields], True)


def test_metadata_are_headers_without_what_is_of_the_protocol_or_binary() -> None:
    read = head(
        ("te", "trailers"),
        ("user-agent", "x"),
        ("a", "1"),
        ("a", "2"),
        ("b-bin", "AAA"),
        ("grpc-timeout", "1S"),
        ("host", "elsewhere"),
    )
    assert read.headers == {"host": "here", "user-agent": "x", "a": "1, 2"}
    assert (read.path, read.encoding, read.malformed, read.http_status, read.code) == (
        "/a.B/C",
        "identity",
        False,
        200,
        "",
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9), ("99999999S", 99999999)],
)
def test_a_deadline_has_a_unit(text: str, seconds: float) -> None:
    assert head(("grpc-timeout", text)).timeout == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "-1S", "1.5S", "123456789S", "1s", "１S"], ids=ascii)
def test_a_deadline_that_is_none_is_the_callers_mistake(text: str) -> None:
    assert head(("grpc-timeout", text)).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "fields",
    [
        PSEUDO[1:],
        [*PSEUDO, PSEUDO[0]],
        [GRPC, *PSEUDO],
        [*PSEUDO, (":other", "x")],
        [*PSEUDO, ("Upper", "x")],
        [*PSEUDO, ("", "x")],
        [*PSEUDO, ("x", "a\r\nb")],
        [*PSEUDO, ("transfer-encoding", "chunked")],
        [*PSEUDO, ("te", "gzip")],
        [PSEUDO[0], PSEUDO[1], (":path", "*")],
    ],
    ids=["missing", "twice", "late", "unknown", "upper", "nameless", "newline", "forbidden", "te", "path"],
)
def test_what_rfc_9113_forbids_is_malformed(fields: list[HeaderField]) -> None:
    assert read_head(fields, True).malformed


def test_a_head_that_is_too_large_is_refused_whatever_is_left_of_it() -> None:
    read = read_head([], False)
    assert (read.malformed, read.code) == (False, "RESOURCE_EXHAUSTED")


def framed(message: bytes, packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(message)) + message


@given(messages=st.lists(st.binary(max_size=60), max_size=6), size=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_messages_are_the_same_however_they_are_cut(messages: list[bytes], size: int) -> None:
    data, gathering = b"".join(map(framed, messages)), Reassembler(1000, "identity")
    found = [each for at in range(0, len(data), size) for each in gathering.feed(data, at, min(at + size, len(data)))]
    assert found == messages
    assert not gathering.in_message


def test_a_large_message_is_not_copied_again_and_cannot_be_changed() -> None:
    (message,) = Reassembler(1 << 30, "identity").feed(framed(bytes(LARGE)), 0, LARGE + 5)
    assert isinstance(message, memoryview)
    assert message.readonly


def test_a_promise_takes_no_memory() -> None:
    gathering = Reassembler(1 << 30, "identity")
    gathering.feed(struct.pack(">BI", 0, 1 << 30) + b"x", 0, 6)
    assert gathering.size == 1
    assert gathering.in_message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x02\0\0\0\0", "INTERNAL"),
        (struct.pack(">BI", 0, 1001), "RESOURCE_EXHAUSTED"),
        (framed(b"x", 1), "INTERNAL"),
        (framed(b"", 1), "INTERNAL"),
        (framed(gzip.compress(bytes(1001)), 1), "RESOURCE_EXHAUSTED"),
        (framed(gzip.compress(b"cut off")[:-3], 1), "INTERNAL"),
    ],
    ids=["flag", "large", "no gzip", "nothing", "bomb", "cut off"],
)
def test_what_cannot_be_read_has_a_status(data: bytes, code: str) -> None:
    def read() -> None:
        for message in Reassembler(1000, "gzip").feed(data, 0, len(data)):
            assert isinstance(message, CompressedMessage)
            message.decompress(INLINE_BYTES)

    with pytest.raises(PredictorError) as caught:
        read()
    assert caught.value.grpc_status == code


def test_both_encodings_are_unpacked_and_none_is_guessed() -> None:
    for packed, encoding in ((gzip.compress(b"text"), "gzip"), (zlib.compress(b"text"), "deflate")):
        assert CompressedMessage(packed, encoding, 10).decompress(INLINE_BYTES) == b"text"
    with pytest.raises(Unreadable, match="grpc-encoding"):
        CompressedMessage(gzip.compress(b"text"), "identity", 10)


def test_a_message_that_becomes_large_is_unpacked_in_steps_and_holds_what_it_has_become() -> None:
    plain = bytes(8 << 20)
    packed = CompressedMessage(gzip.compress(plain), "gzip", 1 << 30)
    assert packed.decompress(INLINE_BYTES) is None
    assert INLINE_BYTES <= len(packed) < 2 << 20
    while (found := packed.decompress(INLINE_BYTES)) is None:
        pass
    assert found == plain
    assert len(packed) > len(plain)


def test_an_answer_is_taught_once_and_then_three_bytes() -> None:
    blocks, client = ResponseHeaderBlocks(), Decoder(10_000)
    for _ in range(3):
        first, second, last = blocks.head(), blocks.head(), blocks.success(waits=False)
        assert [client.fields(each)[0] for each in (first, second, last)] == [TYPED, TYPED, DONE]
    assert (blocks.head(), blocks.success(waits=False), blocks.indexed) == (KNOWN_HEAD, KNOWN_DONE, True)


def test_blocks_that_wait_mean_the_same_whenever_they_leave() -> None:
    blocks, client = ResponseHeaderBlocks(), Decoder(10_000)
    late = [blocks.head(), blocks.success(waits=True)]
    assert client.fields(late[0])[0] == TYPED
    for block, meaning in ((blocks.head(), TYPED), (blocks.success(waits=False), DONE), (late[1], DONE)):
        assert client.fields(block)[0] == meaning


@pytest.mark.parametrize("taught", [False, True])
def test_a_client_with_a_small_table_is_told_that_it_is_not_used(taught: bool) -> None:
    blocks, client = ResponseHeaderBlocks(), Decoder(10_000)
    if taught:
        client.fields(blocks.head())
        client.fields(blocks.success(waits=False))
    blocks.table_size(0)
    block = blocks.head()
    assert block[0] == 0x20
    assert client.fields(block)[0] == TYPED
    assert client.fields(blocks.success(waits=False))[0] == DONE
    assert not blocks.indexed


@given(st.text(st.sampled_from("a% +\n\0\x7fü模😀"), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_text_of_an_error_survives(text: str) -> None:
    encoded = percent_encoded(text)
    assert unquote(encoded, errors="strict") == text
    assert encoded.isascii()
    assert encoded.isprintable()


@pytest.mark.parametrize("text", ["x" * 100_000, "ü" * 100_000, "模" * 100_000], ids=["one", "two", "three"])
def test_a_long_text_is_cut_between_characters(text: str) -> None:
    encoded = percent_encoded(text)
    assert len(encoded) <= MAX_MESSAGE
    assert text.startswith(unquote(encoded, errors="strict"))
    assert len(encoded) > MAX_MESSAGE - 9


def test_a_refusal_alone_is_a_whole_answer_and_behind_messages_only_their_end() -> None:
    blocks = ResponseHeaderBlocks()
    alone = blocks.failure("NOT_FOUND", "no", (("retry-after", "1"),), headed=False, waits=False)
    behind = blocks.failure("NOT_FOUND", "no", (), headed=True, waits=False)
    assert Decoder(10_000).fields(alone)[0] == [
        *TYPED,
        ("grpc-status", "5"),
        ("grpc-message", "no"),
        ("retry-after", "1"),
    ]
    assert Decoder(10_000).fields(behind)[0] == [("grpc-status", "5"), ("grpc-message", "no")]


def test_an_inbox_ends_behind_what_waits_and_tells_why() -> None:
    async def scene() -> tuple[list[Any], int]:
        taken: list[int] = []
        inbox = MessageQueue(lambda: taken.append(inbox.size), ThreadLimiter(1))
        inbox.put(b"one")
        inbox.put(b"two")
        inbox.end(RuntimeError("stopping"))
        got: list[Any] = [await anext(inbox), await anext(inbox)]
        with pytest.raises(RuntimeError, match="stopping"):
            await anext(inbox)
        return got, sum(taken)

    assert asyncio.run(scene()) == ([b"one", b"two"], 3 + MESSAGE_OVERHEAD)
