"""A head whose last line is the request's id is read by its known part: with the same result as if read whole."""

from hypothesis import given
from hypothesis import strategies as st

from pilotlight.wire import http1

ID = b"X-Request-Id: "
LINES = st.sampled_from(
    [
        b"Host: a", b"Content-Length: 3", b"Content-Length: x", b"Connection: close", b"Connection: odd", b"X-A: 1",
        b"X-A: 2", b"Transfer-Encoding: chunked", ID + b"one", ID + b" two \t", ID, b"x-request-id: three",
        ID + b"a\rb", ID + b"a\nb", ID + b"\x00", ID + b"\xe9", b" folded", b"", b"X-Request-Id : four",
    ]
)  # fmt: skip
FIRST = st.sampled_from([b"GET / HTTP/1.1", b"POST /a?b=c HTTP/1.1", b"GET /", b"GET / HTTP/1.0"])


@given(FIRST, st.lists(LINES, max_size=6), st.booleans())
def test_both_readings_agree(first: bytes, lines: list[bytes], last: bool) -> None:
    head = b"\r\n".join([first, b"Host: b", *lines, *([ID + b"0-1"] if last else [])])
    assert http1.parse_head(head) == http1._parse(head)


def test_each_request_has_its_own_id() -> None:
    heads = [http1.parse_head(b"GET / HTTP/1.1\r\nHost: a\r\n" + ID + name) for name in (b"1", b"2")]
    assert [head.headers["x-request-id"] for head in heads if head is not None] == ["1", "2"]
