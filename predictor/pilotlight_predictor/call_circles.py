"""Would a model that calls another one wait for ever? Which instances wait for which models, and what follows. Pure.

An instance that waits for an answer serves nobody meanwhile. When A calls B and B calls A, and each has one instance,
both wait until the server is stopped. So each call is looked at before it is made: a model *gets on* if one of its
instances does not wait, or waits only for models that get on. A call of a model that does not get on is refused.

    A (1 instance) → B (1 idle instance)             B gets on: the call is made, one instance of A waits for B
    B → A, meanwhile                                 all of A wait for B, all of B would wait for A: refused
    B → A, but A has a second instance that is idle  A gets on
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Version(NamedTuple):
    name: str
    number: int


class Shape(NamedTuple):
    """What must be known of a version: `parts` are the models of an ensemble, all of which must get on."""

    instances: int
    parts: Sequence[Version] = ()


ShapeOf = Callable[[Version], Shape]


class Waits:
    def __init__(self) -> None:
        self._waiting: dict[Version, dict[int, list[Version]]] = {}  # by model, by the thread of the instance

    def begin(self, caller: Version, thread: int, target: Version, shape_of: ShapeOf) -> bool:
        """Notes that the caller waits, unless it would wait for ever: then nothing is noted, and it is False."""
        self._waiting.setdefault(caller, {}).setdefault(thread, []).append(target)
        if self._gets_on(target, shape_of, frozenset()):
            return True
        self.end(caller, thread, target)
        return False

    def end(self, caller: Version, thread: int, target: Version) -> None:
        threads = self._waiting[caller]
        threads[thread].remove(target)
        if not threads[thread]:
            del threads[thread]
        if not threads:
            del self._waiting[caller]

    def _gets_on(self, version: Version, shape_of: ShapeOf, above: frozenset[Version]) -> bool:
        if version in above:
            return False
        shape, below = shape_of(version), above | {version}
        if shape.parts:
            return all(self._gets_on(part, shape_of, below) for part in shape.parts)
        waiting = self._waiting.get(version, {})
        if len(waiting) < shape.instances:
            return True
        return any(all(self._gets_on(each, shape_of, below) for each in targets) for targets in waiting.values())
