"""Queues inside replicas, for the approximate simulation: a request goes to the least loaded one and stays there.

That is what the gateway does without `containerConcurrency`. A common queue in front of all replicas would be better
balanced: with exponential times its 99th percentile is 15 % lower, and a replica that starts would relieve the others.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from pilotlight.simulation.trace import Floats


class ReplicaQueues:
    """First in, first out, on `slots` requests at once in each replica.

    `limit` requests wait in a replica (0: any number), each for `timeout_s` at most.
    """

    def __init__(self, slots: int, limit: int, timeout_s: float) -> None:
        self._slots, self._limit, self._timeout_s = slots, limit, timeout_s
        self._names: list[str] = []
        self._free: list[list[float]] = []  # by replica: a heap of when each slot is free
        self._loads: list[int] = []
        self._leaving: list[tuple[float, int]] = []  # a heap of when requests leave, and their replica
        self._pending: list[tuple[float, str]] = []  # replicas that become ready later in this step
        self._turn = 0

    def add(self, name: str, ready_at: float) -> None:
        self._pending.append((ready_at, name))

    def remove(self, name: str) -> float:
        """Remove a replica; return when its last request leaves, 0 if it had none."""
        self._pending = [each for each in self._pending if each[1] != name]
        if name not in self._names:
            return 0.0
        gone = self._names.index(name)
        last = max(self._free[gone])
        del self._names[gone], self._free[gone], self._loads[gone]
        self._leaving = [(at, index - (index > gone)) for at, index in self._leaving if index != gone]
        heapify(self._leaving)
        return last

    def serve(
        self, arrivals: Sequence[float], times: Sequence[float], failures: Counter[str]
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return when each request starts, how long it takes, and which have a response; others count as failures."""
        starts, taken, answered = [], [], []
        free, loads, leaving, limit = self._free, self._loads, self._leaving, self._limit + self._slots
        for arrival, seconds in zip(arrivals, times, strict=True):
            sent = arrival
            if self._pending:
                sent = arrival if loads else max(arrival, self._pending[0][0])
                self._begin(sent)
            while leaving and leaving[0][0] <= sent:
                loads[heappop(leaving)[1]] -= 1
            # Equally loaded ones take turns, as with the gateway.
            self._turn = turn = (self._turn + 1) % len(loads)
            least = min(loads)
            index = loads.index(least, turn) if least in loads[turn:] else loads.index(least)
            start = first if (first := free[index][0]) > sent else sent
            failure = ""
            if least >= limit > self._slots:
                start, seconds, failure = sent, 0.0, "queue full"
            elif start + seconds - sent > self._timeout_s:
                failure = "timeout"
                seconds = seconds if start - sent < self._timeout_s else 0.0  # it is dropped before it runs
            end = start + seconds
            if seconds:
                heapreplace(free[index], end)
            loads[index] = least + 1
            heappush(leaving, (end, index))
            starts.append(start)
            taken.append(seconds)
            answered.append(not failure)
            if failure:
                failures[failure] += 1
        return np.array(starts), np.array(taken), np.array(answered)

    def _begin(self, now: float) -> None:
        """Add the replicas that are ready by now."""
        while self._pending and self._pending[0][0] <= now:
            ready_at, name = self._pending.pop(0)
            self._names.append(name)
            self._free.append([ready_at] * self._slots)
            self._loads.append(0)
