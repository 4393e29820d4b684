"""Strategies of a router component: loads and the beginning of a body in, an endpoint out."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final

PROMPT_PREFIX_BYTES: Final = 256  # that identify a conversation
PROMPT_SEARCH_BYTES: Final = 4096  # of the body
OVERLOADED: Final = 1.5  # times the average

# Start of the prompt in the engines' APIs; in a chat that is the system prompt, which many requests share.
_PROMPT: Final = re.compile(rb'"(?:prompt|content|text_input|input|text)"\s*:\s*')

Loads = Mapping[str, int]  # requests at each endpoint, by its name


class EndpointPicker:
    """Applies one strategy; keeps the position of the round robin."""

    def __init__(self, strategy: str) -> None:
        self.reads_body = strategy == "cache_aware"
        self._turn = 0
        self._choose: Callable[[Loads, bytes], str] = {
            "round_robin": self._round_robin,
            "cache_aware": self._cache_aware,
        }.get(strategy, self._least_loaded)

    def pick(self, loads: Loads, beginning: bytes = b"") -> str:
        """Return one of `loads`, which must not be empty; `beginning` is the buffered part of the body."""
        return self._choose(loads, beginning)

    def _round_robin(self, loads: Loads, beginning: bytes) -> str:
        names = sorted(loads)
        self._turn += 1
        return names[self._turn % len(names)]

    def _least_loaded(self, loads: Loads, beginning: bytes) -> str:
        fewest = min(loads.values())
        return self._round_robin({name: load for name, load in loads.items() if load == fewest}, beginning)

    def _cache_aware(self, loads: Loads, beginning: bytes) -> str:
        prefix = prompt_prefix(beginning)
        preferred_name = preferred(prefix, loads) if prefix else ""
        if not preferred_name or overloaded(loads[preferred_name], loads):
            return self._least_loaded(loads, beginning)
        return preferred_name


def prompt_prefix(beginning: bytes) -> bytes:
    """Return the first bytes of the prompt, or of the body if no prompt is recognized."""
    match = _PROMPT.search(beginning, 0, PROMPT_SEARCH_BYTES)
    start = match.end() if match else 0
    return beginning[start : start + PROMPT_PREFIX_BYTES]


def preferred(prefix: bytes, names: Loads) -> str:
    """Return an endpoint by rendezvous hashing: when one comes or goes, only its own share moves."""
    return max(names, key=lambda name: hashlib.blake2b(prefix, key=name.encode()[:64], digest_size=8).digest())


def overloaded(load: int, loads: Loads) -> bool:
    """Whether the load is far above the average; one is added to both, so that a few requests are no overload."""
    return load + 1 > OVERLOADED * (sum(loads.values()) / len(loads) + 1)
