"""One strict reading of every message: what could be read in two ways reaches no replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.platform.gateway.bed import Bed, Reader, Seen, Writer, backend, error_of, play, read_answer, route

from pilotlight.wire.http1_strict_parser import (
    CHUNKED,
    UNTIL_CLOSE,
    ChunkedBody,
    ContentLengthBody,
    Malformed,
    end_to_end_headers,
    parse_request,
    parse_response,
)

BASE = b"POST /iris/x HTTP/1.1\r\nHost: a\r\n"

AMBIGUOUS = {
    "length and chunks": (BASE + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (BASE + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "a list of lengths": (BASE + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "a signed length": (BASE + b"Content-Length: +3\r\n\r\nabc", 400),
    "a length in hexadecimal": (BASE + b"Content-Length: 0x3\r\n\r\nabc", 400),
    "a length with a comment": (BASE + b"Content-Length: 3 \x0b\r\n\r\nabc", 400),
    "an enormous length": (BASE + b"Content-Length: 9999999999999999999\r\n\r\nabc", 400),
    "two codings": (BASE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another coding": (BASE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "a disguised coding": (BASE + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST /iris/x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "space before a colon": (BASE + b"Content-Length : 3\r\n\r\nabc", 400),
    "a folded header": (BASE + b"X-A: 1\r\n 2\r\n\r\n", 400),
    "a bare LF between headers": (BASE + b"X-A: 1\nX-B: 2\r\n\r\n", 400),
    "bare LFs alone": (b"POST /iris/x HTTP/1.1\nHost: a\n\n", 400),
    "a bare CR": (BASE + b"X-A: 1\rX-B: 2\r\n\r\n", 400),
    "a NUL": (BASE + b"X-A: \x00\r\n\r\n", 400),
    "a header without a name": (BASE + b": 1\r\n\r\n", 400),
    "a line without a colon": (BASE + b"nonsense\r\n\r\n", 400),
    "two hosts": (BASE + b"Host: b\r\n\r\n", 400),
    "no host": (b"POST /iris/x HTTP/1.1\r\n\r\n", 400),
    "two spaces": (b"POST  /iris/x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "another version": (b"POST /iris/x HTTP/2.0\r\nHost: a\r\n\r\n", 400),
    "no version": (b"GET /iris/x\r\nHost: a\r\n\r\n", 400),
    "a raw byte in the path": (b"GET /iris/\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "an empty line first": (b"\r\n\r\n", 400),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "a head without end": (BASE + b"X-A: " + b"a" * (1 << 16), 431),
    "a head that is too long": (BASE + b"X-A: " + b"a" * (1 << 16) + b"\r\n\r\n", 431),
    "no size of a chunk": (BASE + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a negative size": (BASE + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
    "a size in C's words": (BASE + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
    "a chunk beyond its size": (BASE + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", 400),
    "a size ended by LF": (BASE + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400),
    "an extension with LF": (BASE + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n", 400),
    "a malformed trailer": (BASE + b"Transfer-Encoding: chunked\r\n\r\n0\r\nno trailer\r\n\r\n", 400),
}


@pytest.mark.parametrize(("raw", "status"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_ends(raw: bytes, status: int) -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(raw + b"GET /iris/smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        refused = await read_answer(reader)
        assert refused.status == status
        assert error_of(refused)
        assert refused.headers["connection"] == "close"
        assert await reader.read() == b""
        assert origin.seen == []

    play(case)


def test_a_body_that_turns_out_malformed_takes_its_request_back() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            closed.append(await reader.read())

        closed: list[bytes] = []
        origin = await bed.origin(reply, whole=False)
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        writer.write(BASE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        while not origin.seen:
            await bed.ask("GET", "/healthz")
        writer.write(b"bad\x00\r\n")
        assert (await read_answer(reader)).status == 400
        assert await reader.read() == b""
        assert bed.plane.report(bed.plane.clock()).backends[0].in_flight == 0

    play(case)


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\nb\r\n\r\na",
        b"HTTP/1.1 999 OK\r\nContent-Length : 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 17),
    ],
)
def test_a_malformed_answer_is_a_bad_gateway(raw: bytes) -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(raw)
            await reader.read()

        origin = await bed.origin(reply)
        bed.publish(route("iris", backend("iris-1", origin)))
        answered = await bed.ask("GET", "/iris/x")
        assert answered.status == 502
        assert error_of(answered)

    play(case)


def test_requests_in_one_piece_are_answered_one_after_another() -> None:
    async def case(bed: Bed) -> None:
        origin = await bed.origin()
        bed.publish(route("iris", backend("iris-1", origin)))
        reader, writer = await bed.connect()
        plain = b"".join(
            b"POST /iris/%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab" % number for number in range(50)
        )
        writer.write(plain + BASE + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n" + plain)
        paths = [(await read_answer(reader)).json()["path"] for _ in range(101)]
        numbered = [f"/{number}" for number in range(50)]
        assert paths == [*numbered, "/x", *numbered]
        assert all(seen.body in {b"ab", b"a"} for seen in origin.seen)

    play(case)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 9), st.binary(max_size=5))
def test_chunks_end_at_the_same_byte_however_they_arrive(parts: list[bytes], step: int, behind: bytes) -> None:
    raw = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nA: b\r\n\r\n"
    body, used = ChunkedBody(collect=True), 0
    for at in range(0, len(raw + behind), step):
        piece = (raw + behind)[at : at + step]
        used += body.feed(piece)
        if body.done:
            break
    assert (used, body.take_payload()) == (len(raw), b"".join(parts))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=20), st.sampled_from([b"", b";a=b", b" ;x"]))),
    st.integers(1, 60),
    st.sampled_from([b"0\r\nA: b\r\n\r\nnext", b"1\r\nab\r\n", b"1\nx\r\n", b"g\r\n", b"1;\n\r\nx\r\n"]),
)
def test_runs_of_tiny_chunks_are_read_as_if_they_came_byte_by_byte(
    chunks: list[tuple[int, bytes, bytes]], step: int, end: bytes
) -> None:
    raw = b"".join(b"%b%x%b\r\n%b\r\n" % (b"0" * zeros, len(part), more, part) for zeros, part, more in chunks) + end

    def outcome(step: int) -> tuple[int, bool, bool]:
        body, used = ChunkedBody(), 0
        try:
            for at in range(0, len(raw), step):
                used += body.feed(raw[at : at + step])
        except Malformed:
            return 0, body.done, True
        return used, body.done, False

    assert outcome(step) == outcome(len(raw)) == outcome(1)


def test_a_counted_body_takes_no_byte_of_the_next_request() -> None:
    body = ContentLengthBody(5)
    assert (body.feed(b"abc"), body.done) == (3, False)
    assert (body.feed(b"defgh"), body.done) == (2, True)


@pytest.mark.parametrize(
    ("head", "length", "keep", "plain"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12", 12, True, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length:12", 12, True, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close", 12, False, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", CHUNKED, True, False),
        (b"HTTP/1.1 200", UNTIL_CLOSE, True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1", 1, False, False),
    ],
)
def test_an_answers_framing(head: bytes, length: int, keep: bool, plain: bool) -> None:
    parsed = parse_response(head)
    assert (parsed.length, parsed.keep_alive, parsed.plain) == (length, keep, plain)


def test_headers_of_the_connection_stay_behind() -> None:
    head = parse_request(
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: X-B, host\r\nKeep-Alive: 1\r\nX-B: 1\r\nX-C: 1\r\nTE: trailers"
    )
    assert [line.name for line in end_to_end_headers(head.lines)] == ["host", "x-c"]


def test_a_request_line_may_have_any_method() -> None:
    assert parse_request(b"PROPFIND /a HTTP/1.1\r\nHost: a").method == "PROPFIND"
    with pytest.raises(Malformed):
        parse_request(b"PROP FIND /a HTTP/1.1\r\nHost: a")
