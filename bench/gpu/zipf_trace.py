"""Poisson arrivals over models by a Zipf distribution, their replay in real time, and what the responses took."""

import math
import threading
import time
from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

AT_ONCE = 256  # requests under way; those that arrive beyond wait in the client, and their seconds count


class Arrival(NamedTuple):
    at: float  # seconds since the beginning
    model: str


class Answer(NamedTuple):
    arrival: Arrival
    status: str  # of HTTP, or the name of an error
    first_byte_s: float  # since its arrival by the trace
    waited: bool  # for its model to be loaded or woken


def zipf(models: Sequence[str], rate: float, seconds: float, seed: int, exponent: float = 1.0) -> list[Arrival]:
    """Return arrivals of `rate` a second; the first model is the most popular one."""
    random = Random(seed)
    sums = list(accumulate((rank + 1) ** -exponent for rank in range(len(models))))
    arrivals, at = list[Arrival](), random.expovariate(rate)
    while at < seconds:
        arrivals.append(Arrival(at, models[bisect(sums, random.random() * sums[-1])]))
        at += random.expovariate(rate)
    return arrivals


def replay(
    trace: Sequence[Arrival], ask: Callable[[str], tuple[str, bool]], report: Callable[[Answer], None] = lambda _: None
) -> list[Answer]:
    """Send each request at its time, whatever became of those before; `ask` returns at the first byte."""
    begin = time.monotonic()

    def one(arrival: Arrival) -> Answer:
        try:
            status, waited = ask(arrival.model)
        except OSError as error:
            status, waited = type(error).__name__, True
        answer = Answer(arrival, status, time.monotonic() - begin - arrival.at, waited)
        report(answer)
        return answer

    with ThreadPoolExecutor(AT_ONCE) as pool:
        under_way = []
        for arrival in trace:
            time.sleep(max(0.0, begin + arrival.at - time.monotonic()))
            under_way.append(pool.submit(one, arrival))
        return [each.result() for each in under_way]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of sorted values."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(answers: Collection[Answer]) -> dict[str, Any]:
    """Return the figures of a replay; a request without a response counts with the seconds until it failed."""
    if not answers:
        return {"requests": 0}
    waited = sorted(each.first_byte_s for each in answers if each.waited)
    ready = sorted(each.first_byte_s for each in answers if not each.waited)
    seconds = max(each.arrival.at + each.first_byte_s for each in answers)
    good = sum(each.status == "200" for each in answers)
    return {
        "requests": len(answers), "failed": len(answers) - good, "seconds": seconds, "responses_per_s": good / seconds,
        "first_byte_s": _percentiles(sorted(each.first_byte_s for each in answers)),
        "share_waited": len(waited) / len(answers),
        "waited_s": _percentiles(waited), "not_waited_s": _percentiles(ready),
    }  # fmt: skip


def _percentiles(ordered: Sequence[float]) -> dict[str, float]:
    if not ordered:
        return {}
    return {f"p{percent}": percentile(ordered, percent) for percent in (50, 95, 99)} | {"longest": ordered[-1]}


def least_recently_used(loaded: Mapping[str, float], busy: Collection[str], room: int) -> list[str] | None:
    """Return the models to unload so that at most `room` remain; None: too many have requests."""
    idle = sorted((name for name in loaded if name not in busy), key=loaded.__getitem__)
    excess = max(0, len(loaded) - room)
    return idle[:excess] if excess <= len(idle) else None


class LoadedModels:
    """Models of one server that loads and unloads them: at most `most`, the least recently used leaves.

    One load at a time, as the memory of the one that leaves is that of the one that comes.
    """

    def __init__(self, most: int, load: Callable[[str], object], unload: Callable[[str], object]) -> None:
        self._most, self._load, self._unload = most, load, unload
        self._used: dict[str, float] = {}
        self._busy: dict[str, int] = {}
        self._state = threading.Condition()
        self._loading = threading.Lock()

    def acquire(self, name: str) -> bool:
        """Return once the model is loaded, and whether it had to be; `release` follows its response."""
        with self._state:
            if self._enter(name):
                return False
        with self._loading:
            with self._state:
                if self._enter(name):
                    return True
                self._state.wait_for(lambda: least_recently_used(self._used, self._busy, self._most - 1) is not None)
                leaving = least_recently_used(self._used, self._busy, self._most - 1) or []
                for each in leaving:
                    del self._used[each]
            for each in leaving:
                self._unload(each)
            self._load(name)
            with self._state:
                self._used[name] = time.monotonic()
                self._enter(name)
        return True

    def _enter(self, name: str) -> bool:
        if name not in self._used:
            return False
        self._used[name] = time.monotonic()
        self._busy[name] = self._busy.get(name, 0) + 1
        return True

    def release(self, name: str) -> None:
        with self._state:
            self._busy[name] -= 1
            if not self._busy[name]:
                del self._busy[name]
            self._state.notify_all()
