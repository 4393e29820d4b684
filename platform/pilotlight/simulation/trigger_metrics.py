"""Metrics that triggers of a ScaledObject or HPA read, as the replicas and the gateway would export them.

PromQL is evaluated by the embedded platform's evaluator, over series scraped every five seconds of virtual time.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

import numpy as np

from pilotlight.contract import (
    FIRST_TOKEN_BUCKETS,
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    LATENCY_BUCKETS,
    METRIC_FIRST_TOKEN,
    METRIC_GPU_UTILIZATION,
    METRIC_IN_FLIGHT,
    METRIC_QUEUE_DEPTH,
    METRIC_REQUEST_DURATION,
    METRIC_TOKENS_WAITING,
)
from pilotlight.gateway.control_link import BackendReport
from pilotlight.prometheus.metric_queries import KV_CACHE
from pilotlight.simulation.scenario import HPA_SYNC_S, Scenario
from pilotlight.targets.local.scaling.keda import query_value, scheduled_replicas
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, UnsupportedQuery, parse, selectors
from pilotlight.targets.local.scaling.promql.series import UP
from pilotlight.targets.local.scaling.types import Hpa, Metric, Scaling

SCRAPE_S: Final = 5.0
MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)  # start of a trace without a date
DURATION: Final = tuple(f"{METRIC_REQUEST_DURATION}_{part}" for part in ("bucket", "count", "sum"))
SIMULATED: Final = frozenset((*DURATION, METRIC_IN_FLIGHT, METRIC_QUEUE_DEPTH, METRIC_GPU_UTILIZATION, UP))
OF_LLM: Final = frozenset((METRIC_TOKENS_WAITING, f"{METRIC_FIRST_TOKEN}_bucket"))  # by the rates of a profile


class LlmLoad(NamedTuple):
    """Of a language model: tokens of prompts without a first token, seconds to each first token since the last load,
    and the mean share of the replicas' KV caches in use; None: their size is not known."""

    tokens_waiting: int
    first_tokens: Sequence[float]
    cache: float | None


class Busy(Protocol):
    @property
    def running(self) -> float: ...

    @property
    def queued(self) -> int: ...


class TriggerMetrics:
    """`scrape` is called every second with the gateway's report; `values` returns the triggers' last values.

    `llm` returns the load of a language model with each scrape; None: it is not one.
    """

    def __init__(
        self, scenario: Scenario, start: datetime | None = None, llm: Callable[[float], LlmLoad] | None = None
    ) -> None:
        self._llm = llm
        self._start = start or MONDAY
        self._change: dict[str, tuple[float, float]] = {}  # value of a schedule and when it changes
        scaling = scenario.scaling
        self._metrics: tuple[Metric, ...] = scaling.metrics if isinstance(scaling, Hpa) else ()
        self._polling_s = min(scaling.polling_s, HPA_SYNC_S) if isinstance(scaling, Hpa) else HPA_SYNC_S
        self._queries = [each for each in self._metrics if each.source == "prometheus"]
        self._evaluator = Evaluator()
        for metric in self._queries:
            with suppress(UnsupportedQuery):
                self._evaluator.watch(metric.query)
        service = scenario.name.removesuffix("-predictor").removesuffix("-engine")
        self._labels = {
            LABEL_SERVICE: service, LABEL_NAMESPACE: scenario.namespace, LABEL_REVISION: scenario.name,
        }  # fmt: skip
        self._requests = self._errors = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        self._first_tokens = np.zeros(len(FIRST_TOKEN_BUCKETS) + 1, dtype=np.int64)
        self._busy = 0.0  # mean share of the replicas' capacity in use, since the last scrape
        self._busy_sum, self._busy_count = 0.0, 0
        self._scraped_at = self._queried_at = float("-inf")
        self._values: dict[str, float | None] = {}

    @property
    def used(self) -> bool:
        return bool(self._metrics)

    def scrape(self, now: float, report: BackendReport | None, stations: Sequence[Busy]) -> None:
        if not self._metrics:
            return
        shares = [each.running for each in stations]
        self._busy_sum += sum(shares) / len(shares) if shares else 0.0
        self._busy_count += 1
        if report is not None:
            self._requests += report.requests
            self._errors += report.errors
            self._seconds += report.latency_s
            self._buckets = [old + new for old, new in zip(self._buckets, report.latencies, strict=True)]
        if now - self._scraped_at < SCRAPE_S:
            return
        self._scraped_at = now
        self._busy, self._busy_sum, self._busy_count = self._busy_sum / self._busy_count, 0.0, 0
        if not self._queries:
            return
        load = self._llm(now) if self._llm is not None else None
        if load is not None:
            self._record_tokens(now, load)
        if not shares:
            self._evaluator.mark_ended(self._labels)
            return
        self._record(now, report.in_flight if report is not None else 0, sum(each.queued for each in stations))
        if load is not None and load.cache is not None:
            for name in KV_CACHE:
                self._evaluator.record(name, self._labels, load.cache, now)

    def _record_tokens(self, now: float, load: LlmLoad) -> None:
        """Record what the gateway exports, which does not end with the replicas."""
        labels = {LABEL_SERVICE: self._labels[LABEL_SERVICE], LABEL_NAMESPACE: self._labels[LABEL_NAMESPACE]}
        self._evaluator.record(METRIC_TOKENS_WAITING, labels, load.tokens_waiting, now)
        index = np.searchsorted(FIRST_TOKEN_BUCKETS, load.first_tokens)
        self._first_tokens += np.bincount(index, minlength=self._first_tokens.size)
        edges = (*map(str, FIRST_TOKEN_BUCKETS), "+Inf")
        for edge, count in zip(edges, accumulate(self._first_tokens.tolist()), strict=True):
            self._evaluator.record(f"{METRIC_FIRST_TOKEN}_bucket", {**labels, "le": edge}, count, now)

    def _record(self, now: float, in_flight: int, queued: int) -> None:
        record, name = self._evaluator.record, METRIC_REQUEST_DURATION
        edges = (*map(str, LATENCY_BUCKETS), "+Inf")
        for edge, count in zip(edges, accumulate(self._buckets), strict=True):
            record(f"{name}_bucket", {**self._labels, "le": edge}, count, now)
        record(f"{name}_count", {**self._labels, "code": "200"}, self._requests - self._errors, now)
        record(f"{name}_count", {**self._labels, "code": "500"}, self._errors, now)
        record(f"{name}_sum", self._labels, self._seconds, now)
        record(METRIC_IN_FLIGHT, self._labels, in_flight, now)
        record(METRIC_QUEUE_DEPTH, self._labels, queued, now)
        record(UP, self._labels, 1, now)
        record(METRIC_GPU_UTILIZATION, self._labels, self._busy, now)

    def values(self, now: float, ready: int) -> Mapping[str, float | None]:
        """Return the values by trigger. A replica that serves without a pause uses the CPU that it requests."""
        if now - self._queried_at >= self._polling_s:
            self._queried_at = now
            for metric in self._queries:
                self._values[metric.name] = None
                with suppress(UnsupportedQuery):
                    self._values[metric.name] = query_value(metric, self._evaluator.evaluate(metric.query, now))
        for metric in self._metrics:
            if metric.source == "cron":
                self._values[metric.name] = self._scheduled(metric, now)
            if metric.source == "cpu":
                self._values[metric.name] = 100.0 * self._busy if ready else None
        return self._values

    def _scheduled(self, metric: Metric, now: float) -> float:
        value, until = self._change.get(metric.name, (0.0, -1.0))
        if now >= until:
            assert metric.schedule is not None
            moment = self._start + timedelta(seconds=now)
            value = scheduled_replicas(metric, moment)
            until = (metric.schedule.active(moment)[1] - self._start).total_seconds()
            self._change[metric.name] = value, until
        return value


def missing_metrics(scaling: Scaling, *, llm: bool, cache: bool) -> list[str]:
    """Return a note for each trigger that reads what the simulation does not have.

    `llm`: the rates of a language model are known; `cache`: the size of its KV cache too.
    """
    known = SIMULATED | (OF_LLM if llm else frozenset()) | (frozenset(KV_CACHE) if cache else frozenset())
    notes = []
    for metric in scaling.metrics if isinstance(scaling, Hpa) else ():
        if metric.source != "prometheus":
            continue
        try:
            names = {selector.name for selector in selectors(parse(metric.query))}
        except UnsupportedQuery as error:
            notes.append(f"trigger {metric.name} is not simulated: {error}")
            continue
        if missing := names - known:
            field = "llm.kvCacheTokens" if llm else "the rates of a language model (llm)"
            fix = f"; give --profile with {field}" if missing <= OF_LLM | set(KV_CACHE) else ""
            notes.append(f"trigger {metric.name} is not simulated: it reads {', '.join(sorted(missing))}{fix}")
    return notes
