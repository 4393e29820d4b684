"""Deadlock detection for models that call other models. Pure.

An instance that waits for a response serves no other request. If A calls B while B calls A and each has one instance,
both wait until the server stops. So each call is checked before it is made: a model *makes progress* if one of its
instances does not wait, or waits only for models that make progress. A call of a model without progress is refused.

    A (1 instance) → B (1 idle instance)             B makes progress: call allowed, one instance of A waits for B
    B → A at the same time                           all of A wait for B, all of B would wait for A: refused
    B → A, but A has a second instance that is idle  A makes progress
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pilotlight_predictor.backends.base import VersionId


class VersionCapacity(NamedTuple):
    """Instances of a version; `steps` are the models of an ensemble, all of which must make progress."""

    instances: int
    steps: Sequence[VersionId] = ()


CapacityOf = Callable[[VersionId], VersionCapacity]


class DeadlockDetector:
    """Wait-for graph of the instances that wait for other models."""

    def __init__(self) -> None:
        self._waiting: dict[VersionId, dict[int, list[VersionId]]] = {}  # by model, by the instance's thread

    def begin(self, caller: VersionId, thread: int, target: VersionId, capacity_of: CapacityOf) -> bool:
        """Record that the caller waits for the target. Return False, and record nothing, if that is a deadlock."""
        self._waiting.setdefault(caller, {}).setdefault(thread, []).append(target)
        if self._progresses(target, capacity_of, frozenset()):
            return True
        self.end(caller, thread, target)
        return False

    def end(self, caller: VersionId, thread: int, target: VersionId) -> None:
        threads = self._waiting[caller]
        threads[thread].remove(target)
        if not threads[thread]:
            del threads[thread]
        if not threads:
            del self._waiting[caller]

    def _progresses(self, version: VersionId, capacity_of: CapacityOf, visited: frozenset[VersionId]) -> bool:
        if version in visited:  # a cycle in which every instance waits
            return False
        capacity, visited = capacity_of(version), visited | {version}
        if capacity.steps:
            return all(self._progresses(step, capacity_of, visited) for step in capacity.steps)
        waiting = self._waiting.get(version, {})
        if len(waiting) < capacity.instances:
            return True
        return any(
            all(self._progresses(each, capacity_of, visited) for each in targets) for targets in waiting.values()
        )
