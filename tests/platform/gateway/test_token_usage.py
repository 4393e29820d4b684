"""Tokens are read from `usage` of JSON bodies and of streams, split at any byte."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight.gateway.token_usage import MAX_COUNT, TAIL, Usage, UsageReader, usage_of

OPENAI = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
RESPONSES = {"input_tokens": 12, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}
ANTHROPIC = {"input_tokens": 4, "cache_read_input_tokens": 8, "output_tokens": 3}
QUOTED = 'say "usage": {"prompt_tokens": 99} and "choices":[]\n\ndata: '  # content is never read as a key


def chunk(content: str | None, usage: Any = None, **fields: Any) -> dict[str, Any]:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return {"id": "1", "object": "chat.completion.chunk", "choices": choices, "usage": usage, **fields}


def events(*documents: Any, end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(each)}{end}" for each in documents).encode() + f"data: [DONE]{end}".encode()


def read(body: bytes, cuts: list[int], *, stream: bool, strip: bool = False) -> tuple[UsageReader, bytes]:
    reader = UsageReader(stream, 40, strip)
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [body[start:end] for start, end in pairwise(edges)]
    passed = b"".join(reader.feed(piece, 100.0 + number) for number, piece in enumerate(pieces))
    return reader, passed + reader.finish(100.0 + len(pieces))


@pytest.mark.parametrize("fields", [OPENAI, RESPONSES, ANTHROPIC])
def test_each_protocol_s_usage_is_read(fields: dict[str, Any]) -> None:
    assert usage_of(fields) == Usage(12, 8, 3)
    assert usage_of({**fields, "prompt_tokens": -1, "input_tokens": "x"}).prompt in {0, 8}


@given(cuts=st.lists(st.integers(1, 900), max_size=12), end=st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))
def test_a_stream_is_read_and_stripped_however_it_is_split(cuts: list[int], end: str) -> None:
    words = [chunk("", role="assistant"), chunk("Hel"), chunk(QUOTED), chunk("lo")]
    body = events(*words, chunk(None, OPENAI), end=end)
    reader, passed = read(body, cuts, stream=True)
    assert (reader.usage, passed) == (Usage(12, 8, 3), body)
    reader, passed = read(body, cuts, stream=True, strip=True)
    assert (reader.usage, passed) == (Usage(12, 8, 3), events(*words, end=end))
    final = events(*words, chunk("!", OPENAI), end=end)  # usage beside content stays
    assert read(final, cuts, stream=True, strip=True)[1] == final


@given(cuts=st.lists(st.integers(1, 3 * TAIL), max_size=8), padding=st.integers(0, 2 * TAIL))
def test_a_json_body_is_read_from_its_tail(cuts: list[int], padding: int) -> None:
    body = json.dumps({"choices": [{"text": QUOTED + "x" * padding}], "usage": OPENAI, "id": "1"}).encode()
    reader, passed = read(body, cuts, stream=False)
    assert (reader.usage, passed) == (Usage(12, 8, 3), body)
    assert reader.per_output_token is None


def test_times_begin_with_the_first_event_with_content() -> None:
    reader = UsageReader(True, 0)
    assert reader.first_at == 0.0
    for now, document in enumerate([chunk(""), chunk("a"), chunk("b"), chunk("c"), chunk(None, OPENAI)], 10):
        reader.feed(f"data: {json.dumps(document)}\n\n".encode(), float(now))
    assert (reader.first_at, reader.last_at, reader.per_output_token) == (11.0, 13.0, 1.0)


def test_without_usage_the_tokens_are_estimated() -> None:
    cut = events(chunk("a"), chunk("b"))[:-20]
    assert read(cut, [], stream=True)[0].usage == Usage(10, 0, 2)
    assert read(b"x" * 80, [], stream=False)[0].usage == Usage(10, 0, 20)
    cut = events(chunk("word " * 80), chunk("b"))[:-20]
    assert read(cut, [], stream=True)[0].usage == Usage(10, 0, 100), "several tokens in a chunk"
    anthropic = [{"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}]
    anthropic += [{"type": "content_block_delta", "delta": {"text": "a"}}, {"usage": {"output_tokens": 5}}]
    assert read(events(*anthropic), [], stream=True)[0].usage == Usage(9, 0, 5)
    reader = UsageReader(True, 40)
    reader.feed(events(*anthropic[:2], *anthropic[1:2]), 1.0)
    assert reader.usage == Usage(9, 0, 2), "cut before its last report"


def test_whole_texts_of_sglang_count_once() -> None:
    texts = [{"text": "ab " * size, "index": index, "meta_info": {"completion_tokens": 2 * size}}
             for size in range(1, 40) for index in (0, 1)]  # fmt: skip
    assert read(events(*texts), [], stream=True)[0].usage.completion == 2 * 78


TOOLS = [{"type": "function", "parameters": {"properties": {"usage": {"type": "object"}}}}]


@pytest.mark.parametrize("stream", [True, False])
def test_tools_that_an_engine_echoes_hide_no_tokens(stream: bool) -> None:
    created = {"type": "response.created", "response": {"tools": TOOLS, "usage": None}}
    completed = {"type": "response.completed", "response": {"tools": TOOLS, "usage": RESPONSES}}
    body = events(created, completed) if stream else json.dumps(completed).encode()
    assert read(body, [], stream=stream)[0].usage == Usage(12, 8, 3)
    alone = events(chunk("a"), created) if stream else json.dumps(created).encode()
    assert read(alone, [], stream=stream)[0].usage.prompt == 10, "estimated, not 0"


@pytest.mark.parametrize("stream", [True, False])
def test_usage_of_a_hostile_engine_is_bounded(stream: bool) -> None:
    for value, tokens in ((b"9" * 4000, MAX_COUNT), (b"9" * 5000, 10), (b"[" * 9000, 10)):
        document = b'{"usage":{"prompt_tokens":%b}}' % value
        assert read(b"data: %b\n\n" % document if stream else document, [], stream=stream)[0].usage.prompt == tokens
