"""What a replica does with its requests: queue, batches, instances of the model; the KV cache of a language model.

A station gets requests with `submit` and calls `done` for each. The batches are those of the predictor's batcher.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, Final, Protocol

import numpy as np

from pilotlight.simulation.service_times import LlmRates, Samples, ServiceTimes
from pilotlight.simulation.virtual_clock import VirtualClock
from pilotlight_predictor.scheduling.batching import BatchPolicy, next_batch

DEFAULT_SERVICE_TIME_S: Final = 0.05
NS: Final = 1_000_000_000


Done = Callable[[Any, float, str], None]  # the request, the time, and why it failed


class Station(Protocol):
    @property
    def running(self) -> float:
        """Share of the replica's capacity in use."""

    @property
    def queued(self) -> int:
        """Requests that wait in the replica."""

    def submit(self, request: Any, now: float) -> None: ...


class FifoStation:
    """First in, first out, on as many instances as run at once; a request that waited too long is dropped."""

    __slots__ = ("_busy", "_clock", "_done", "_limit", "_parallel", "_queue", "_timeout")

    def __init__(self, clock: VirtualClock, done: Done, parallel: int, limit: int, timeout: float) -> None:
        self._clock, self._done, self._parallel, self._limit, self._timeout = clock, done, parallel, limit, timeout
        self._busy = 0
        self._queue: deque[Any] = deque()

    @property
    def running(self) -> float:
        return self._busy / self._parallel

    @property
    def queued(self) -> int:
        return len(self._queue)

    def submit(self, request: Any, now: float) -> None:
        if self._busy < self._parallel:
            self._start(request, now)
        elif self._limit and len(self._queue) >= self._limit:
            self._done(request, now, "queue full")
        else:
            self._queue.append(request)

    def _start(self, request: Any, now: float) -> None:
        request.started_at = now
        self._busy += 1
        self._clock.at(now + request.service_s, self._finish, request)

    def _finish(self, now: float, request: Any) -> None:
        self._busy -= 1
        while self._queue:
            waiting = self._queue.popleft()
            if now - waiting.sent_at < self._timeout:
                self._start(waiting, now)
                break
            self._done(waiting, now, "timeout")
        self._done(request, now, "")


class BatchStation:
    """Dynamic batching: the predictor's policy forms the batches, each takes the time of its size."""

    def __init__(
        self, clock: VirtualClock, done: Done, times: ServiceTimes, limit: int, timeout: float,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self._clock, self._done, self._times, self._limit, self._timeout = clock, done, times, limit, timeout
        self._rng = rng
        largest = times.max_batch or max(times.by_batch)
        self._policy = BatchPolicy(largest, delay_ns=int(times.batch_delay * NS))
        self._queue: deque[Any] = deque()
        self._busy = 0
        self._timer_at = float("inf")

    @property
    def running(self) -> float:
        return self._busy / self._times.parallel

    @property
    def queued(self) -> int:
        return len(self._queue)

    def submit(self, request: Any, now: float) -> None:
        if self._limit and len(self._queue) >= self._limit:
            self._done(request, now, "queue full")
            return
        request.enqueued_ns = int(now * NS)
        self._queue.append(request)
        self._fill(now)

    def _fill(self, now: float) -> None:
        while self._queue and self._busy < self._times.parallel:
            now_ns = round(now * NS)
            take, wait_ns = next_batch(self._queue, self._policy, now_ns)
            if not take:
                until = now + max(1, wait_ns or 0) / NS
                if until < self._timer_at:
                    self._timer_at = until
                    self._clock.at(until, self._on_timer)
                return
            batch = [self._queue.popleft() for _ in range(take)]
            late = [each for each in batch if now - each.sent_at >= self._timeout]
            for request in late:
                self._done(request, now, "timeout")
            if batch := [each for each in batch if each not in late]:
                self._busy += 1
                for request in batch:
                    request.started_at = now
                seconds = at_size(self._times.by_batch, len(batch), self._rng)
                self._clock.at(now + seconds, self._finish, batch)

    def _on_timer(self, now: float, _: Any) -> None:
        self._timer_at = float("inf")
        self._fill(now)

    def _finish(self, now: float, batch: list[Any]) -> None:
        self._busy -= 1
        self._fill(now)
        for request in batch:
            self._done(request, now, "")


class Progress:
    """Requests that proceed together, each at the speed that `speed` returns for their number."""

    def __init__(
        self, clock: VirtualClock, speed: Callable[[int], float], finished: Callable[[float, Any], None]
    ) -> None:
        self._clock, self._speed, self._finished = clock, speed, finished
        self.requests: list[tuple[float, int, Any]] = []  # by the work at which each is complete
        self.work = 0.0  # done of each request that was always there
        self.paused = False
        self._since = 0.0
        self._number = self._version = 0

    def advance(self, now: float) -> None:
        if self.requests and not self.paused:
            self.work += (now - self._since) * self._speed(len(self.requests))
        self._since = now

    def add(self, request: Any, work: float, now: float) -> None:
        self.advance(now)
        self._number += 1
        heappush(self.requests, (self.work + work, self._number, request))

    def pause(self, now: float) -> None:
        self.advance(now)
        self.paused = True
        self._version += 1

    def proceed(self, now: float) -> None:
        """Wait for the request that is complete first; `finished` is called with it."""
        self.advance(now)
        self._version += 1
        if self.requests:
            left = max(0.0, self.requests[0][0] - self.work)
            self._clock.at(now + left / self._speed(len(self.requests)), self._finish, self._version)

    def _finish(self, now: float, version: int) -> None:
        if version == self._version:
            self.advance(now)
            self.work, _, request = heappop(self.requests)
            self._finished(now, request)


class SharedStation:
    """Requests in flight slow each other down as measured: with n of them each proceeds at latency(1) / latency(n)."""

    def __init__(
        self, clock: VirtualClock, done: Done, by_concurrency: Mapping[int, Samples], rng: np.random.Generator
    ) -> None:
        self._done, self._rng = done, rng
        self._means = {level: sum(samples) / len(samples) for level, samples in by_concurrency.items()}
        self._alone = by_concurrency[min(by_concurrency)]
        self._speeds: dict[int, float] = {}
        self._progress = Progress(clock, self._speed, self._finish)

    @property
    def running(self) -> float:
        return min(1.0, len(self._progress.requests) / max(self._means))

    @property
    def queued(self) -> int:
        return 0

    def submit(self, request: Any, now: float) -> None:
        request.started_at = now
        alone = self._alone
        work = alone[self._rng.integers(len(alone))] if len(alone) > 1 else alone[0]
        self._progress.add(request, work, now)
        self._progress.proceed(now)

    def _speed(self, requests: int) -> float:
        if requests not in self._speeds:
            latency = interpolate(self._means, requests)
            # Beyond the largest measured number the replica is saturated: twice the requests take twice as long.
            saturation = max(1.0, requests / max(self._means))
            self._speeds[requests] = self._means[min(self._means)] / (latency * saturation)
        return self._speeds[requests]

    def _finish(self, now: float, request: Any) -> None:
        self._progress.proceed(now)
        self._done(request, now, "")


class LlmStation:
    """Continuous batching of a language model, as engines do it: prefills first, one after the other, then decoding.

    A request is admitted when its tokens fit into the KV cache, in order. All running ones decode a token at a time, at
    the measured rate of their number.
    """

    def __init__(self, clock: VirtualClock, done: Done, rates: LlmRates, limit: int, timeout: float) -> None:
        self._clock, self._done, self._rates, self._limit, self._timeout = clock, done, rates, limit, timeout
        self._queue: deque[Any] = deque()
        self._decoding = Progress(clock, self._token_rate, self._finish)  # by tokens; paused by a prefill
        self._prefilling: Any = None
        self._cache = 0

    @property
    def running(self) -> float:
        return float(bool(self._decoding.requests or self._prefilling))

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def tokens_waiting(self) -> int:
        """Tokens of prompts without a first token."""
        waiting = (*self._queue, self._prefilling) if self._prefilling is not None else self._queue
        return sum(request.input_tokens for request in waiting)

    def cache_usage(self, now: float) -> float:
        """Return the share of the KV cache that holds prompts and decoded tokens; 0 if it has no limit."""
        if not self._rates.kv_cache_tokens:
            return 0.0
        self._decoding.advance(now)
        # A request ends at `until` decoded tokens; those it still lacks are reserved, but hold nothing.
        missing = sum(until - self._decoding.work for until, _, _ in self._decoding.requests)
        missing += self._prefilling.output_tokens if self._prefilling is not None else 0
        return max(0.0, self._cache - missing) / self._rates.kv_cache_tokens

    def submit(self, request: Any, now: float) -> None:
        needed = request.input_tokens + request.output_tokens
        if self._rates.kv_cache_tokens and needed > self._rates.kv_cache_tokens:
            self._done(request, now, "unavailable")
        elif self._limit and len(self._queue) >= self._limit:
            self._done(request, now, "queue full")
        else:
            self._queue.append(request)
            self._admit(now)

    def _token_rate(self, requests: int) -> float:
        """Return the tokens per second of each request."""
        return interpolate(self._rates.decode_tokens_s, requests) / requests

    def _admit(self, now: float) -> None:
        if self._prefilling is not None:
            return
        rates = self._rates
        while self._queue and len(self._decoding.requests) < rates.max_batch:
            request = self._queue[0]
            if now - request.sent_at >= self._timeout:
                self._done(self._queue.popleft(), now, "timeout")
                continue
            needed = request.input_tokens + request.output_tokens
            if rates.kv_cache_tokens and self._cache + needed > rates.kv_cache_tokens:
                break
            self._decoding.pause(now)
            self._prefilling = self._queue.popleft()
            self._cache += needed
            request.started_at = now
            self._clock.at(now + request.input_tokens / rates.prefill_tokens_s, self._prefilled)
            return
        self._decoding.proceed(now)

    def _prefilled(self, now: float, _: Any) -> None:
        request, self._prefilling = self._prefilling, None
        request.first_token_at = now
        self._decoding.add(request, max(0, request.output_tokens - 1), now)
        self._decoding.paused = False
        self._admit(now)

    def _finish(self, now: float, request: Any) -> None:
        self._cache -= request.input_tokens + request.output_tokens
        self._admit(now)
        self._done(request, now, "")


def interpolate(values: Mapping[int, float], size: int) -> float:
    """Return the value at a size: linear between measured ones, beyond them that of the nearest."""
    sizes = sorted(values)
    return float(np.interp(size, sizes, [values[each] for each in sizes]))


def at_size(by_size: Mapping[int, Samples], size: int, rng: np.random.Generator) -> float:
    """Return a sampled time of a size, linear between measured ones."""
    share = float(rng.random()) if any(len(samples) > 1 for samples in by_size.values()) else 0.0
    return interpolate({each: samples[int(share * len(samples))] for each, samples in by_size.items()}, size)
