"""Prefix-aware choice of a replica: an approximate index of the prompt prefixes in the KV cache of each. Pure.

A prompt is a chain of block hashes, each of a block and the hash before it. So one hash stands for a whole prefix, and
the hashes that a replica has are a prefix tree. They are bounded and evicted by least recent use, leaves first.
"""

import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 256  # about 64 tokens; smaller blocks cost memory (gateway-api-inference-extension#2878)
MAX_PROMPT_BYTES: Final = 1 << 16  # of the body that are compared
MAX_BLOCKS: Final = 1 << 16  # of all replicas together: 16 MiB of prompts in about 13 MiB of memory
OVERLOADED: Final = 2.0  # times the average load; one is added to both, so that a few requests are no overload
CROWDED: Final = 1.5  # times the fewest blocks of a replica, with the prompt's
MIN_SHARE: Final = 0.2  # of the prompt that must match: less is not worth an uneven load

_FIELD_SEARCH_BYTES: Final = 4096
# Start of the prompt in the engines' APIs: fields before it, such as an id of the user, differ between requests.
_PROMPT_FIELD: Final = re.compile(rb'"(?:messages|prompt|input|text_input|text)"\s*+:\s*+')


class Prompt(NamedTuple):
    """Block hashes of a prompt, from the first block on; `session` is a hash of its session's id, 0 without one."""

    blocks: tuple[int, ...]
    session: int = 0


def read_prompt(body: bytes, session: str = "", model: str = "") -> Prompt:
    """Return the prompt of a request by the beginning of its body, at most MAX_PROMPT_BYTES of it.

    `model`: an adapter, which has a KV cache of its own.
    """
    field = _PROMPT_FIELD.search(body, 0, _FIELD_SEARCH_BYTES)
    end = min(len(body), MAX_PROMPT_BYTES) - BLOCK_BYTES + 1
    blocks, prefix = [], hash(model) if model else 0
    for start in range(field.end() if field else 0, end, BLOCK_BYTES):
        prefix = hash((prefix, body[start : start + BLOCK_BYTES]))  # keyed by a secret of the process
        blocks.append(prefix)
    return Prompt(tuple(blocks), hash(session) if session else 0)


class PrefixIndex:
    """Index of one revision. The replicas of each call to `pick` may differ; `retain` forgets those that left."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        # By replica: hash of a prefix → how many prompts went on from there. A prefix is more recent than any that
        # extends it, so that every prefix of one that is there is there, too.
        self._caches: dict[str, OrderedDict[int, int]] = {}
        self._max_blocks = max_blocks
        self._turn = 0

    def pick(self, loads: Mapping[str, int], prompt: Prompt) -> str:
        """Return the replica for a prompt, and record it there. `loads`: requests in flight by replica, not empty.

        Of the replicas that are not overloaded it is the one with the session, then the longest prefix, then the least
        load, then the fewest blocks; equals take turns.
        """
        for name in loads:
            self._caches.setdefault(name, OrderedDict())
        limit = OVERLOADED * (sum(loads.values()) / len(loads) + 1)
        candidates = [name for name, load in loads.items() if load + 1 <= limit]
        self._turn += 1
        start = self._turn % len(candidates)
        crowded = CROWDED * (min(len(self._caches[name]) for name in loads) + len(prompt.blocks))

        def rank(name: str) -> tuple[bool, int, int, int]:
            cache = self._caches[name]
            match = self._match(cache, prompt.blocks, len(cache) > crowded)
            return prompt.session in cache, match, -loads[name], -len(cache)

        chosen = max((*candidates[start:], *candidates[:start]), key=rank)
        self._record(self._caches[chosen], prompt)
        return chosen

    def retain(self, names: Iterable[str]) -> None:
        """Forget the other replicas."""
        self._caches = {name: self._caches[name] for name in names if name in self._caches}

    @property
    def blocks(self) -> int:
        return sum(map(len, self._caches.values()))

    def _match(self, cache: OrderedDict[int, int], blocks: tuple[int, ...], crowded: bool) -> int:
        """Return how many blocks a replica has; 0 if they are few, or if it has many more blocks than others."""
        # A system prompt that all sessions share would lead every new one to the first replica that had it. The next
        # turn of a session continues a leaf, and goes where that is.
        match = _matching(cache, blocks)
        branches = match and cache[blocks[match - 1]]
        return 0 if match < MIN_SHARE * len(blocks) or (branches and crowded) else match

    def _record(self, cache: OrderedDict[int, int], prompt: Prompt) -> None:
        blocks = prompt.blocks
        match = _matching(cache, blocks)
        if 0 < match < len(blocks):
            cache[blocks[match - 1]] += 1
        added = 0  # the last block has no continuation yet
        for block in reversed(blocks):
            cache.setdefault(block, added)
            cache.move_to_end(block)
            added = 1
        if prompt.session:
            cache[prompt.session] = 0
            cache.move_to_end(prompt.session)
        limit = self._max_blocks // len(self._caches)
        while len(cache) > limit:
            cache.popitem(last=False)


def _matching(cache: OrderedDict[int, int], blocks: tuple[int, ...]) -> int:
    return bisect_left(blocks, True, key=lambda block: block not in cache)
