"""Observers read the bodies of requests to routes with models, without framing, and may change what streams."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.platform.gateway.bed import Bed, Reader, Seen, Writer, answer, backend, play, read_answer, route

from pilotlight.gateway.proxy.interfaces import ObservedRequest

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ASKED = b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


class Recorder:
    """Passes text on in upper case, but for its last byte, which it holds back until the end."""

    def __init__(self, calls: list[Any], request: ObservedRequest) -> None:
        self._calls, self._held = calls, b""
        calls.append(("caller", request.caller))

    def on_request_body(self, piece: bytes) -> None:
        self._calls.append(("request", piece))

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._calls.append((status, headers.get("content-type")))

    def on_body(self, piece: bytes) -> bytes:
        self._calls.append(("body", piece))
        text = self._held + piece.upper()
        self._held = text[-1:]
        return text[:-1]

    def on_body_end(self) -> bytes:
        return self._held

    def on_end(self, status: int, now: float) -> None:
        self._calls.append(("end", status))


@pytest.mark.parametrize("minor", [0, 1])
def test_an_observer_reads_payload_and_changes_a_stream(minor: int) -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(STREAM + b"4\r\nabcd\r\n2;x=1\r\nef\r\n0\r\n\r\n")

        calls: list[Any] = []
        bed.plane.observers.append(lambda request: Recorder(calls, request))
        origin = await bed.origin(reply)
        bed.publish(route("llm", backend("llm-1", origin), models=("llm",)))
        reader, writer = await bed.connect()
        body = ASKED if minor else b"Host: a\r\nContent-Length: 5\r\n\r\nhello"
        writer.write(b"POST /llm/v1/completions HTTP/1.%d\r\n" % minor + body)
        answered = await read_answer(reader)
        assert answered.body == b"ABCDEF"
        assert ("transfer-encoding" in answered.headers) == bool(minor)
        assert b"".join(text for kind, text in calls if kind == "request") == b"hello"
        assert b"".join(text for kind, text in calls if kind == "body") == b"abcdef"
        assert [call for call in calls if call[0] not in {"request", "body"}] == [
            ("caller", ""),
            (200, "text/event-stream"),
            ("end", 200),
        ]

    play(case)


def test_a_response_of_a_known_length_stays_and_other_routes_are_not_observed() -> None:
    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            await answer(writer, b'{"a": 1}')

        calls: list[Any] = []
        bed.plane.observers.append(lambda request: Recorder(calls, request))
        origin = await bed.origin(reply)
        plain = route("iris", backend("iris-1", origin))
        bed.publish(plain, route("llm", backend("llm-1", origin), models=("llm",)), route("none", models=("none",)))
        assert (await bed.ask("POST", "/iris/v1/completions", b"x")).body == b'{"a": 1}'
        assert calls == []
        assert (await bed.ask("POST", "/llm/v1/completions", b"x")).body == b'{"a": 1}'
        assert calls == [("caller", ""), ("request", b"x"), (200, None), ("body", b'{"a": 1}'), ("end", 200)]
        calls.clear()
        assert (await bed.ask("POST", "/none/v1/completions", b"x")).status == 503
        assert calls == [("caller", ""), ("request", b"x"), ("end", 503)]

    play(case)
