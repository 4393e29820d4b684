"""Chats, completions and embeddings by OpenAI's protocol, whole and as streams."""

import asyncio

import numpy as np
import pytest
from tests.platform.client.conftest import Ask
from tests.platform.client.scripted_server import reply, scripted
from tests.serving import RunningServer

from pilotlight.client import AsyncClient, Client, ConnectionFailed, DeadlineExceeded, ResponseError

HELLO = [{"role": "user", "content": "hello my world"}]


def events(*parts: str, end: bool = True) -> bytes:
    body = "".join(f"data: {part}\n\n" for part in parts) + ("data: [DONE]\n\n" if end else "")
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_a_chat_is_answered(served: RunningServer, ask: Ask) -> None:
    answer = ask(served.url, "chat", HELLO, model="speaker", max_tokens=20)
    assert str(answer) == answer.text == "hello my world "
    assert answer.message["role"] == "assistant"
    assert str(ask(served.url + "/v1", "chat", "one text", model="speaker")) == "one text "


def test_a_chat_streams_its_parts(served: RunningServer, ask: Ask) -> None:
    parts = ask(served.url, "stream_chat", HELLO, model="speaker")
    assert [part.text for part in parts if part.text] == ["hello ", "my ", "world "]


def test_parts_come_before_the_answer_is_whole(served: RunningServer) -> None:
    """The model waits for half a minute after its second word; the first is there, and leaving ends the request."""
    with Client(served.url) as client:
        for part in client.stream_chat("hello wait there", model="speaker"):
            if part.text:
                assert part.text == "hello "
                break

    async def scene() -> None:
        async with AsyncClient(served.url) as client:
            stream = client.stream_chat("hello wait there", model="speaker")
            async for part in stream:
                if part.text:
                    assert part.text == "hello "
                    break

    asyncio.run(scene())


def test_a_deadline_ends_a_stream(served: RunningServer, ask: Ask) -> None:
    with pytest.raises(DeadlineExceeded, match="no response within"):
        ask(served.url, "stream_chat", "hello wait there", model="speaker", timeout=2)


def test_embeddings_are_rows(served: RunningServer, ask: Ask) -> None:
    rows = ask(served.url, "embed", ["a", "abc"], model="lengths")
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, [[1, 1.5], [3, 1.5]])
    assert ask(served.url, "embed", "one", model="lengths").shape == (1, 2)


def test_a_completion_continues_a_prompt(ask: Ask) -> None:
    answer = {"choices": [{"text": " world", "finish_reason": "length"}], "usage": {"total_tokens": 2}}
    with scripted(reply(200, answer)) as server:
        completion = ask(server.url, "complete", "hello", max_tokens=1)
        assert (completion.text, completion.finish_reason, completion.usage) == (
            " world",
            "length",
            {"total_tokens": 2},
        )
    with scripted(events('{"choices": [{"text": "a"}]}', '{"choices": [{"text": "b"}]}')) as server:
        assert "".join(map(str, ask(server.url, "stream_complete", "hello"))) == "ab"
        assert server.requests[0].startswith("POST /v1/completions ")


def test_an_error_has_the_server_s_sentence(served: RunningServer, ask: Ask) -> None:
    for method in ("chat", "stream_chat"):
        with pytest.raises(ResponseError, match=r"400: .*temperature") as caught:
            ask(served.url, method, HELLO, model="speaker", temperature=9)
        assert caught.value.status == 400


def test_an_error_within_a_stream_is_raised(ask: Ask) -> None:
    failed = '{"error": {"message": "the model failed"}}'
    answer = events('{"choices": []}', failed, end=False)
    with scripted(answer) as server, pytest.raises(ResponseError, match="the model failed"):
        ask(server.url, "stream_chat", "hello")


def test_a_stream_that_is_cut_off_is_an_error(ask: Ask) -> None:
    with scripted(events('{"choices": []}', end=False)) as server, pytest.raises(ResponseError, match="ended without"):
        ask(server.url, "stream_chat", "hello")
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n6\r\ndata: \r\n"
    with scripted(cut) as server, pytest.raises((ConnectionFailed, DeadlineExceeded)):
        ask(server.url, "stream_chat", "hello", timeout=1)
