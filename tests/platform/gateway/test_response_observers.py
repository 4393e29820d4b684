"""Observers read the bodies of requests to models, without framing, and may change what streams; names of models."""

import asyncio
import json
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.platform.gateway.bed import WAIT_S, Bed, Reader, Seen, Writer, answer, backend, play, read_answer, route
from tests.serving import Answer

from pilotlight.gateway.proxy.interfaces import ObservedRequest
from pilotlight.gateway.proxy.response_observers import ResponseModel

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


PLAIN = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
CHUNKED = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
QUOTED = '\\"model\\": \\"llama\\"'  # generated text, not a field
NAMES = [("gpt-4o-mini", "llama"), ("x", "llama"), ("modell-ä", "llama")]


async def renamed(bed: Bed, pieces: list[bytes], name: str) -> Answer:
    """The response to a request for an alias of `llama`, whose replica sends these pieces, one by one."""

    async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
        assert json.loads(seen.body)["model"] == "llama"
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)

    bed.publish(route("llm", backend("llm-1", await bed.origin(reply)), models=("llama", name)))
    return await bed.ask("POST", "/v1/chat/completions", json.dumps({"model": name}).encode())


@pytest.mark.parametrize("cut", [0, 1, 7, 4096])
@pytest.mark.parametrize(("name", "engine_name"), NAMES)
def test_a_json_response_has_the_client_s_name_of_the_model(name: str, engine_name: str, cut: int) -> None:
    """`cut`: bytes of a piece; 0: all of it comes with the head."""
    text = '{"id": "1", "text": "%s", "model" : "%s", "usage": {"completion_tokens": 1}}'
    whole = (text % (QUOTED + "é" * 99, engine_name)).encode()
    nameless = b'{"data": [1, 2], "model": null}'

    async def case(bed: Bed) -> None:
        for body in (whole, nameless):
            parts = [body[at : at + cut] for at in range(0, len(body), cut)] if cut else [body]
            head = PLAIN.format(len(body)).encode()
            framed = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
            for pieces in (
                [head + parts[0], *parts[1:]] if not cut else [head, *parts],
                [CHUNKED.encode(), *framed, b"0\r\n\r\n"],
            ):
                got = await renamed(bed, pieces, name)
                expected = json.loads(body)
                expected |= {"model": name} if body is whole else {}
                assert json.loads(got.body) == expected
                assert int(got.headers.get("content-length", len(got.body))) == len(got.body)

    play(case)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("cut", [3, 50, 4096])
def test_each_event_of_a_stream_has_the_client_s_name_of_the_model(cut: int, end: bytes) -> None:
    """Of chat completions, and where it is nested, as in the first event of responses and messages."""
    chunk = f'{{"id":"1","model":"llama","choices":[{{"delta":{{"content":"{QUOTED}"}}}}]}}'
    first = '{"type":"message_start","message":{"model":"llama","usage":{"input_tokens":1}}}'
    events = b"".join(b"data: " + event.encode() + end for event in (first, chunk, chunk, "[DONE]"))
    parts = [events[at : at + cut] for at in range(0, len(events), cut)]

    async def case(bed: Bed) -> None:
        framed = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
        got = await renamed(bed, [STREAM, *framed, b"0\r\n\r\n"], "law")
        assert got.body == events.replace(b'"model":"llama"', b'"model":"law"')

    play(case)


def test_an_event_is_passed_on_before_the_next_one() -> None:
    async def case(bed: Bed) -> None:
        passed = asyncio.Event()

        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            event = b'data: {"model":"llama"}\n\n'
            writer.write(STREAM + b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.wait_for(passed.wait(), WAIT_S)
            writer.write(b"0\r\n\r\n")

        bed.publish(route("llm", backend("llm-1", await bed.origin(reply)), models=("llama", "law")))
        reader, writer = await bed.connect()
        body = b'{"model": "law", "stream": true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await asyncio.wait_for(reader.readuntil(b'data: {"model":"law"}\n\n'), WAIT_S)
        passed.set()

    play(case)


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("kind", ["audio/wav", "text/plain; charset=utf-8", "application/octet-stream"])
def test_a_response_that_is_no_json_stays_as_it_is(kind: str, length: bool) -> None:
    """As speech, and the text of a transcription."""
    body = b'\x00RIFF"model": "llama"\xff'
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n"

    async def case(bed: Bed) -> None:
        if length:
            pieces = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body]
        else:
            pieces = [f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode(), body, b"\r\n0\r\n\r\n"]
        assert (await renamed(bed, pieces, "a-longer-name")).body == body

    play(case)


def test_a_response_to_head_gets_no_body() -> None:
    """Whose request has one: what fills up the length of a renamed response would begin the next response."""

    async def case(bed: Bed) -> None:
        async def reply(seen: Seen, reader: Reader, writer: Writer) -> None:
            writer.write(PLAIN.format(20).encode())

        bed.plane.observers.append(lambda request: Recorder([], request))
        bed.publish(route("llm", backend("llm-1", await bed.origin(reply)), models=("llama", "a-longer-name")))
        reader, writer = await bed.connect()
        body = b'{"model": "a-longer-name"}'
        for _ in range(2):
            head = f"HEAD /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answered = await read_answer(reader, "HEAD")
            assert (answered.status, answered.headers["content-length"]) == (200, "20")

    play(case)


@pytest.mark.parametrize("engine_name", ["llama", 'a"b\\c', "m(.*)+?[x]", "modell-ä", "🦙🦙🦙🦙🦙🦙"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_names_are_replaced_wherever_a_body_is_cut(engine_name: str, ascii_only: bool) -> None:
    """Compared with what an engine would have sent that knows the name."""
    random, name = Random(1), 'x"\\1\\g<0>é'

    def rendered(model: str) -> bytes:
        return json.dumps({"id": f'"model": "{model}"', "model": model, "n": [1]}, ensure_ascii=ascii_only).encode()

    expected = json.loads(rendered(engine_name)) | {"model": name}
    for stream, sized in ((False, False), (False, True), (True, False)):
        body = b"".join(b"data: %b\n\n" % rendered(engine_name) for _ in range(3)) if stream else rendered(engine_name)
        for _ in range(200):
            cuts = sorted({0, len(body), *(random.randrange(len(body)) for _ in range(random.randrange(9)))})
            model = ResponseModel(engine_name, name, stream, sized)
            passed = b"".join([*(model.feed(body[a:b]) for a, b in pairwise(cuts)), model.finish()])
            assert not sized or len(passed) == len(body) + model.growth
            events = [event.removeprefix("data: ") for event in passed.decode().split("\n\n") if event]
            assert [json.loads(event) for event in events] == [expected] * (3 if stream else 1)
