"""Prefix-aware choice among replicas, without a gateway: who gets which prompt, and what is forgotten."""

import json
from collections import Counter

import pytest

from pilotlight.gateway.proxy.prefix_index import BLOCK_BYTES, MAX_PROMPT_BYTES, PrefixIndex, Prompt, read_prompt

IDLE = dict.fromkeys("abcd", 0)
SYSTEM = "You know everything about lighthouses. " * 20  # 780 bytes


def chat(*contents: str, **fields: object) -> bytes:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[min(at, 1 + (at + 1) % 2)], "content": text} for at, text in enumerate(contents)]
    return json.dumps({**fields, "model": "llama", "messages": messages}).encode()


def question(session: int, turn: int) -> str:
    return f"session {session}, turn {turn}: why do ships still need lighthouses? " * 8


def test_sessions_of_one_system_prompt_spread_and_each_returns_to_its_replica() -> None:
    index, sessions = PrefixIndex(), {number: [SYSTEM] for number in range(40)}
    homes: dict[int, set[str]] = {}
    for turn in range(4):
        for number, texts in sessions.items():
            texts.append(question(number, turn))
            homes.setdefault(number, set()).add(index.pick(IDLE, read_prompt(chat(*texts))))
            texts.append("they do not. " * 20)
    assert {len(visited) for visited in homes.values()} == {1}
    shares = Counter(name for (name,) in homes.values())
    assert len(shares) == 4
    assert max(shares.values()) <= 2 * min(shares.values())


def test_prompts_of_one_long_document_meet_at_its_replica() -> None:
    index = PrefixIndex()
    documents = [f"document {number} " * 400 for number in range(8)]
    served = [
        {index.pick(IDLE, read_prompt(chat(document, f"question {asked}"))) for asked in range(3)}
        for document in documents
    ]
    assert all(len(names) == 1 for names in served)
    assert set(Counter(name for (name,) in served).values()) == {2}


def test_an_overloaded_replica_is_spared_for_the_next_longest_prefix() -> None:
    index = PrefixIndex()
    long, short = read_prompt(chat(SYSTEM * 4)), read_prompt(chat(SYSTEM * 3))
    assert index.pick({"a": 0, "b": 9, "c": 9}, long) == "a"
    assert index.pick({"a": 30, "b": 0, "c": 9}, short) == "b"
    assert index.pick({"a": 1, "b": 0, "c": 0}, long) == "a"
    assert index.pick({"a": 9, "b": 1, "c": 0}, long) == "b"


@pytest.mark.parametrize("body", [b"", b'{"prompt": "short"}', b"x" * (BLOCK_BYTES - 1)])
def test_a_short_prompt_goes_to_the_least_loaded_and_equals_take_turns(body: bytes) -> None:
    index, prompt = PrefixIndex(), read_prompt(body)
    assert prompt == Prompt(())
    assert index.pick({"a": 3, "b": 0}, prompt) == "b"
    assert {index.pick(IDLE, prompt) for _ in range(8)} == set(IDLE)


def test_a_session_returns_whatever_its_prompt_is() -> None:
    index = PrefixIndex()
    first = index.pick(IDLE, read_prompt(chat(SYSTEM), "s-1"))
    assert {index.pick(IDLE, read_prompt(chat(question(turn, turn)), "s-1")) for turn in range(6)} == {first}
    assert index.pick({**IDLE, first: 9}, read_prompt(chat(SYSTEM), "s-1")) != first


def test_fields_before_the_prompt_do_not_matter_and_differing_prompts_share_their_beginning() -> None:
    one, two = read_prompt(chat(SYSTEM, "a" * 600, user="ada")), read_prompt(chat(SYSTEM, "b" * 600, user="grace"))
    shared = sum(first == second for first, second in zip(one.blocks, two.blocks, strict=True))
    assert 0 < shared < len(one.blocks)
    assert len(read_prompt(b"x" * (2 * MAX_PROMPT_BYTES)).blocks) == MAX_PROMPT_BYTES // BLOCK_BYTES


def test_the_index_is_bounded_and_forgets_leaves_before_what_they_share() -> None:
    index = PrefixIndex(max_blocks=64)
    for number in range(200):
        index.pick({"a": 0, "b": 0}, read_prompt(chat(SYSTEM, question(number, 0)), f"s-{number}"))
    assert index.blocks <= 64
    home = index.pick({"a": 0, "b": 0}, read_prompt(chat(SYSTEM, question(199, 0), "yes", question(199, 1))))
    index.retain([home])
    assert 0 < index.blocks <= 32
