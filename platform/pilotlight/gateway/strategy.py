"""How a router chooses among the endpoints of a component. Pure: loads and the request's beginning in, a name out.

round_robin      each in turn
least_loaded     whoever has the fewest requests; equals take turns
cache_aware      the same beginning goes to the same endpoint, whose cache may know it, unless it is overloaded
prefill_decode   as least_loaded, among the decoders and apart from that among the prefill engines
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final

PREFIX: Final = 256  # bytes of the prompt that tell one conversation from another
LOOKED_AT: Final = 4096  # bytes of the body in which the prompt is looked for
OVERLOADED: Final = 1.5  # times the average

# Where prompts begin in the dialects of engines; the first one of a chat is the system's, which many requests share.
_PROMPT: Final = re.compile(rb'"(?:prompt|content|text_input|input|text)"\s*:\s*')

Loads = Mapping[str, int]  # requests at each endpoint, by its name


class Choice:
    """Remembers whose turn it is."""

    def __init__(self, strategy: str) -> None:
        self.reads_body = strategy == "cache_aware"
        self._turn = 0
        self._choose: Callable[[Loads, bytes], str] = {
            "round_robin": self._round_robin,
            "cache_aware": self._cache_aware,
        }.get(strategy, self._least_loaded)

    def of(self, loads: Loads, beginning: bytes = b"") -> str:
        """One of `loads`, which are not empty; `beginning` is what there is of the body."""
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
        favourite = preferred(prefix, loads) if prefix else ""
        if not favourite or overloaded(loads[favourite], loads):
            return self._least_loaded(loads, beginning)
        return favourite


def prompt_prefix(beginning: bytes) -> bytes:
    """The prompt's first bytes, or the body's where no prompt is seen."""
    found = _PROMPT.search(beginning, 0, LOOKED_AT)
    start = found.end() if found else 0
    return beginning[start : start + PREFIX]


def preferred(prefix: bytes, names: Loads) -> str:
    """The same for the same prefix; when an endpoint comes or goes, only its own share moves."""
    return max(names, key=lambda name: hashlib.blake2b(prefix, key=name.encode()[:64], digest_size=8).digest())


def overloaded(load: int, loads: Loads) -> bool:
    """One more than it has, against one more than the average: a handful of requests is no overload."""
    return load + 1 > OVERLOADED * (sum(loads.values()) / len(loads) + 1)
