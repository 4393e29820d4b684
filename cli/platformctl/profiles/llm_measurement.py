"""Rates of a language model behind OpenAI's protocol, for its profile: prompts of several lengths, and streams.

A prompt of n tokens has its first token after n / prefill rate. Streams that began together decode at the rate of their
number between the last of their first tokens and the first of their ends.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Final, NamedTuple

from pilotlight.client import Client, ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError
from pilotlight.client.openai import COMPLETIONS
from pilotlight.errors import PlatformError
from pilotlight.simulation.service_times import LlmRates
from platformctl.profiles.profile_measurement import Request

WORDS: Final = (8, 32, 128, 512, 2048)  # of prompts; about as many tokens
ANSWER: Final = (64, 16, 4)  # tokens of an answer; fewer where the model's context is too short
ROUNDS: Final = 3  # prompts of each length
TIMEOUT_S: Final = 300.0
FAILURES: Final = (ConnectionFailed, DeadlineExceeded, InvalidInput, ResponseError)
_CACHE: Final = (  # sizes of KV caches on the pages of vLLM and SGLang
    re.compile(r'^vllm:cache_config_info\{(?=.*block_size="(\d+)")(?=.*num_gpu_blocks="(\d+)")', re.MULTILINE),
    re.compile(r"^sglang:max_total_num_tokens(?:\{.*\})?\s+(\d+)", re.MULTILINE),
)


class Stream(NamedTuple):
    """Times of the parts of a streamed answer, from the same clock, and tokens by the server's count."""

    began: float
    parts: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int

    def tokens_within(self, begin: float, end: float) -> float:
        """Return the tokens after `begin` up to `end`; parts have equally many."""
        return sum(begin < at <= end for at in self.parts) * self.output_tokens / len(self.parts)


class LanguageModel:
    """Model that completes prompts through a gateway. Prompts differ from their first word, so that none is cached."""

    def __init__(self, url: str, headers: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._client = Client(url, headers=dict(headers), timeout=TIMEOUT_S)
        self._clock = clock
        self._numbers = itertools.count(time.time_ns() % 10**6)
        self._model = ""

    def find(self) -> bool:
        """Return whether the server has a model that completes text."""
        try:
            names = self._client.models()
        except FAILURES:
            return False
        for name in names:
            self._model = name
            try:
                self.stream(WORDS[0], ANSWER[-1])
            except FAILURES:
                continue
            return True
        return False

    def stream(self, words: int, tokens: int) -> Stream:
        """Complete a prompt with exactly so many tokens. Raise one of FAILURES."""
        number = next(self._numbers)
        prompt = " ".join(str((number + index) % 1000) for index in range(words))
        began, parts, usage = self._clock(), [], dict[str, Any]()
        answer = self._client.stream_complete(
            prompt, model=self._model, max_tokens=tokens, temperature=0, ignore_eos=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        for part in answer:
            if part.document.get("choices"):
                parts.append(self._clock())
            usage |= part.usage
        if not parts or "prompt_tokens" not in usage:
            raise ResponseError("stream: there is no usage in it, so its tokens are not known", 0, "no usage")
        return Stream(began, tuple(parts), int(usage["prompt_tokens"]), int(usage["completion_tokens"]))

    def request(self) -> Request:
        """Return a short request, to wake the service with."""
        body = {"model": self._model, "prompt": "hello", "max_tokens": 1}
        return Request(COMPLETIONS, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def prefill_rate(self) -> float:
        """Return the tokens per second of prompts, the longest that the model takes."""
        streams: list[Stream] = []
        for words in WORDS:
            try:
                streams += [self.stream(words, 1) for _ in range(ROUNDS)]
            except ResponseError:
                if not streams:
                    raise
                break  # longer than the model's context
        return prefill_tokens_s([(each.prompt_tokens, each.parts[0] - each.began) for each in streams])

    def decode_rate(self, clients: int, seconds: float) -> float:
        """Return the tokens per second of so many streams together."""
        tokens = self._answer_tokens()
        end, rounds = self._clock() + seconds, list[float]()
        with ThreadPoolExecutor(clients) as pool:
            while not rounds or self._clock() < end:
                barrier = Barrier(clients)

                def stream(_: int, together: Barrier = barrier) -> Stream:
                    together.wait(TIMEOUT_S)
                    return self.stream(WORDS[0], tokens)

                rounds.append(decode_tokens_s(list(pool.map(stream, range(clients)))))
        return sum(rounds) / len(rounds)

    def _answer_tokens(self) -> int:
        for tokens in ANSWER[:-1]:
            try:
                self.stream(WORDS[0], tokens)
            except ResponseError:
                continue
            return tokens
        return ANSWER[-1]


def prefill_tokens_s(prompts: Sequence[tuple[int, float]]) -> float:
    """Return the rate that fits best where n tokens take n / rate seconds: long prompts have the most to say."""
    return sum(tokens * tokens for tokens, _ in prompts) / sum(tokens * seconds for tokens, seconds in prompts)


def decode_tokens_s(streams: Sequence[Stream]) -> float:
    """Return the tokens per second while all streams decode, or over all of their time where they never do together."""
    begin, end = max(each.parts[0] for each in streams), min(each.parts[-1] for each in streams)
    if begin >= end:
        begin, end = min(each.parts[0] for each in streams), max(each.parts[-1] for each in streams)
    if begin >= end:
        raise PlatformError("the model's tokens come at once, not as a stream", "measure an engine that streams tokens")
    return sum(each.tokens_within(begin, end) for each in streams) / (end - begin)


def kv_cache_tokens(metrics: str) -> int:
    """Return the size of an engine's KV cache by its metrics; 0: not known."""
    for pattern in _CACHE:
        if match := pattern.search(metrics):
            sizes = [int(each) for each in match.groups()]
            return sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    return 0


def rates(model: LanguageModel, levels: Sequence[int], seconds: float, progress: Callable[[str], None]) -> LlmRates:
    """Measure a language model: prompts alone, then as many streams at once as each level has."""
    try:
        progress("prompts of several lengths")
        prefill = model.prefill_rate()
        decode = {}
        for clients in levels:
            progress(f"{clients} streams")
            decode[clients] = model.decode_rate(clients, seconds)
    except FAILURES as error:
        raise PlatformError(f"the language model does not respond: {error}", "see platformctl logs") from error
    return LlmRates(round(prefill, 3), {size: round(rate, 3) for size, rate in decode.items()})
