"""Metrics for autoscalers of Deployments and for canaries: CPU, memory, and Prometheus queries.

Queries are evaluated over the replicas' own /metrics, scraped here, or by a Prometheus server if an address is given.
Only units with such a metric and services with a canary are scraped.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from pilotlight.contract import (
    FIRST_TOKEN_BUCKETS,
    LATENCY_BUCKETS,
    METRIC_FIRST_TOKEN,
    METRIC_GATEWAY_LOST,
    METRIC_IN_FLIGHT,
    METRIC_REQUEST_DURATION,
    METRIC_TOKENS_WAITING,
    series_labels,
)
from pilotlight.gateway.control_link import BackendReport, Report
from pilotlight.prometheus.client import QueryFailed, instant_query, query_number
from pilotlight.targets.local.control.replicas import ReplicaSet
from pilotlight.targets.local.control.service_state import ServiceRun, Unit
from pilotlight.targets.local.scaling.keda import query_value, scheduled_replicas
from pilotlight.targets.local.scaling.promql.evaluator import Evaluator, UnsupportedQuery
from pilotlight.targets.local.scaling.types import Hpa, Metric, Scaling
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.target import Key, Sample
from pilotlight.wire.http_client import request
from pilotlight.wire.prometheus_text import number

SCRAPE_S: Final = 5.0
SCRAPE_TIMEOUT_S: Final = 3.0
HPA_SYNC_S: Final = 15.0  # as the HPA controller; KEDA's own interval matters only if it is shorter
MAX_AGE_S: Final = 0.5  # of the scrape that answers a canary's query
log = logging.getLogger(__name__)


class CpuSample(NamedTuple):
    at: float
    cpu_seconds: float


@dataclass(slots=True)
class RequestCounts:
    buckets: list[int]
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0


class MetricsSource:
    """`values` returns the last measurements at once; `refresh` updates them in a background task."""

    def __init__(self, supervisor: Supervisor, clock: Callable[[], float], server: str = "") -> None:
        self._supervisor, self._clock, self._server = supervisor, clock, server
        self._evaluator = Evaluator()
        self._cpu: dict[str, tuple[CpuSample | None, CpuSample]] = {}  # by replica, older sample first
        self._scraped_at = 0.0
        self._queried_at: dict[tuple[str, str], float] = {}
        self._failed: dict[str, str] = {}  # last logged error by query
        self._refreshing: asyncio.Task[None] | None = None
        self._lost: dict[tuple[str, str, str], int] = {}  # by namespace, service, revision; since this process started
        self._first_tokens: dict[Key, list[int]] = {}  # counts by FIRST_TOKEN_BUCKETS, since this process started
        self._tokens_waiting: dict[Key, int] = {}
        # Of adapters, by the engine's name, and of revisions without metrics of ours, since this process started.
        self._counted: dict[tuple[str, str, str], RequestCounts] = {}
        self.canary_services: set[Key] = set()  # scraped regardless of their scaling

    def values(self, unit: Unit, replicas: Sequence[Replica], now: float) -> dict[str, float | None]:
        if not isinstance(unit.scaling, Hpa):
            return {}
        for metric in unit.scaling.metrics:
            if metric.source in ("cpu", "memory"):
                unit.metrics[metric.name] = self._usage(unit, metric, replicas, now)
            elif metric.source == "cron":
                unit.metrics[metric.name] = scheduled_replicas(metric, datetime.now(UTC))
        return unit.metrics

    def _usage(self, unit: Unit, metric: Metric, replicas: Sequence[Replica], now: float) -> float | None:
        """Return the mean over ready replicas: CPU in percent of the request or in cores, memory in bytes."""
        ready = [replica for replica in replicas if replica.state == "ready"]
        if metric.source == "memory":
            sizes = [self._supervisor.usage(replica.id).resident_bytes for replica in ready]
            return sum(sizes) / len(sizes) if sizes else None
        rates = [rate for replica in ready if (rate := self._cpu_rate(replica, now)) is not None]
        if not rates:
            return None
        mean = sum(rates) / len(rates)
        used = 100.0 * mean / (unit.cpu_request or 1.0) if metric.kind == "Utilization" else mean
        if used <= metric.target:
            return used
        # As the HPA: replicas without a measurement count as idle, but must not turn a scale-up into a scale-down.
        return max(metric.target, used * len(rates) / len(ready))

    def _cpu_rate(self, replica: Replica, now: float) -> float | None:
        """Return cores used over the last 5 to 10 s; None while there is no such range."""
        sample = CpuSample(now, self._supervisor.usage(replica.id).cpu_seconds)
        older, newer = self._cpu.get(replica.id, (None, sample))
        if now - newer.at >= SCRAPE_S:
            # The first range starts 5 s after readiness: until then the replica loads what a quick start left out.
            older, newer = newer if older else sample, sample
        self._cpu[replica.id] = older, newer
        if older is None or now - older.at < SCRAPE_S:
            return None
        return (sample.cpu_seconds - older.cpu_seconds) / (now - older.at)

    def forget(self, replica: Replica) -> None:
        self._cpu.pop(replica.id, None)
        self._evaluator.mark_ended(_labels(replica))

    def count_lost(self, key: Key, revision: str, requests: int) -> None:
        """Count requests lost with a crashed replica, as the gateway reports them: its own counters are gone."""
        if requests:
            self._lost[*key, revision] = self._lost.get((*key, revision), 0) + requests

    def count_tokens(self, report: Report) -> None:
        """Count what the gateway reports about tokens, for triggers; replicas do not know its queue."""
        self._tokens_waiting = dict.fromkeys(self._tokens_waiting, 0)
        self._tokens_waiting |= {(each.namespace, each.name): each.tokens for each in report.token_queues}
        for each in report.tokens:
            counts = self._first_tokens.setdefault((each.namespace, each.name), [0] * (len(FIRST_TOKEN_BUCKETS) + 1))
            for index, responses in enumerate(each.first_token):
                counts[index] += responses

    def count_requests(self, key: Key, report: BackendReport) -> None:
        """Count those to an adapter or engine, which has no such metrics, without those that `count_lost` counts."""
        counted = self._counted.setdefault((*key, report.revision), RequestCounts([0] * len(report.latencies)))
        counted.requests += report.requests - report.rejected - report.lost
        counted.errors += report.errors - report.rejected - report.lost
        counted.seconds += report.latency_s
        counted.buckets = [old + new for old, new in zip(counted.buckets, report.latencies, strict=True)]

    def _record_requests(self, now: float) -> None:
        """Store the counts as a replica with our metrics would have them, by which canaries judge."""
        for key, counted in self._counted.items():
            labels = series_labels(*key)
            record = partial(self._evaluator.record, now=now)
            edges = (*map(str, LATENCY_BUCKETS), "+Inf")
            for edge, count in zip(edges, accumulate(counted.buckets), strict=True):
                record(f"{METRIC_REQUEST_DURATION}_bucket", {**labels, "le": edge}, count)
            for code, count in (("200", counted.requests - counted.errors), ("500", counted.errors)):
                record(f"{METRIC_REQUEST_DURATION}_count", {**labels, "code": code}, count)
            record(f"{METRIC_REQUEST_DURATION}_sum", labels, counted.seconds)
            record(METRIC_IN_FLIGHT, labels, 0)

    def retain(self, services: Collection[Key]) -> None:
        """Drop the counts of all other services."""
        self._lost = {key: count for key, count in self._lost.items() if key[:2] in services}
        self._first_tokens = {key: counts for key, counts in self._first_tokens.items() if key in services}
        self._tokens_waiting = {key: tokens for key, tokens in self._tokens_waiting.items() if key in services}
        self._counted = {key: counts for key, counts in self._counted.items() if key[:2] in services}

    def forget_revision(self, key: Key, revision: str) -> None:
        self._lost.pop((*key, revision), None)
        self._counted.pop((*key, revision), None)

    def refresh(self, replica_set: ReplicaSet, runs: Iterable[ServiceRun], now: float) -> None:
        """Scrape replicas and evaluate due queries in a background task, never two at a time."""
        services = list(runs)
        queried = [(run, unit) for run in services for unit in run.units.values() if queries(unit.scaling)]
        scraped = {run.key: run for run in services if run.key in self.canary_services}
        scraped |= {run.key: run for run, _ in queried}
        if scraped and (self._refreshing is None or self._refreshing.done()):
            replicas = [replica for run in scraped.values() for replica in replica_set.active(run)]
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(queried, replicas, now))

    async def _refresh(
        self, queried: Sequence[tuple[ServiceRun, Unit]], replicas: Sequence[Replica], now: float
    ) -> None:
        for _, unit in queried:
            for metric in queries(unit.scaling):
                with suppress(UnsupportedQuery):  # the service was deployed while a Prometheus was configured
                    self._evaluator.watch(metric.query)
        await self._scrape_all(replicas, SCRAPE_S)
        for run, unit in queried:
            assert isinstance(unit.scaling, Hpa)
            if now - self._queried_at.get((run.key[0], unit.name), 0.0) >= min(unit.scaling.polling_s, HPA_SYNC_S):
                self._queried_at[run.key[0], unit.name] = now
                for metric in queries(unit.scaling):
                    unit.metrics[metric.name] = await self._query_metric(metric)

    async def query(self, promql: str, replicas: Sequence[Replica]) -> list[Sample]:
        """Evaluate a canary's query now. Series are stored from the first query that names them on."""
        if self._server:
            return await asyncio.to_thread(instant_query, self._server, promql)
        fresh = self._evaluator.watch(promql)
        await self._scrape_all(replicas, 0.0 if fresh else MAX_AGE_S)
        now = self._clock()
        newest = self._evaluator.newest(promql)
        at = time.time() - (now - newest) if newest is not None else 0.0
        return [Sample(dict(labels), value, at) for labels, value in self._evaluator.vector(promql, now).items()]

    async def _scrape_all(self, replicas: Sequence[Replica], age_s: float) -> None:
        """Scrape the ready replicas unless the last scrape is younger than `age_s`."""
        if self._server or self._clock() - self._scraped_at < age_s:
            return
        self._scraped_at = self._clock()
        ready = {replica.id: replica for replica in replicas if replica.state == "ready"}
        for key, requests in self._lost.items():
            self._evaluator.record(METRIC_GATEWAY_LOST, series_labels(*key), requests, self._scraped_at)
        self._record_tokens(self._scraped_at)
        self._record_requests(self._scraped_at)
        await asyncio.gather(*(self._scrape(replica) for replica in ready.values()))

    def _record_tokens(self, now: float) -> None:
        """Record the gateway's tokens as its own page has them, but for labels that no trigger uses."""
        for key, tokens in self._tokens_waiting.items():
            self._evaluator.record(METRIC_TOKENS_WAITING, series_labels(*key), tokens, now)
        for key, counts in self._first_tokens.items():
            labels = series_labels(*key)
            for bound, below in zip((*FIRST_TOKEN_BUCKETS, float("inf")), accumulate(counts), strict=True):
                self._evaluator.record(f"{METRIC_FIRST_TOKEN}_bucket", {**labels, "le": number(bound)}, below, now)

    async def _scrape(self, replica: Replica) -> None:
        page = await request(replica.port, "/metrics", SCRAPE_TIMEOUT_S, host=replica.host)
        if not page.ok:
            self._evaluator.mark_down(_labels(replica), self._clock())
            return
        with suppress(ValueError):
            self._evaluator.ingest(page.body.decode(), _labels(replica), self._clock())

    async def _query_metric(self, metric: Metric) -> float | None:
        """Return the metric's value; None counts as a failure of the scaler."""
        try:
            if not self._server:
                return query_value(metric, self._evaluator.evaluate(metric.query, self._clock()))
            return query_value(metric, await asyncio.to_thread(query_number, self._server, metric.query))
        except (QueryFailed, UnsupportedQuery) as error:
            if self._failed.get(metric.query) != str(error):
                self._failed[metric.query] = str(error)
                log.warning("%s: %s", metric.name, error)
            return None


def queries(scaling: Scaling) -> list[Metric]:
    return [metric for metric in scaling.metrics if metric.source == "prometheus"] if isinstance(scaling, Hpa) else []


def _labels(replica: Replica) -> dict[str, str]:
    """Return the labels that a ServiceMonitor would add to scraped series."""
    return series_labels(replica.namespace, replica.service, replica.revision) | {"pod": replica.id}
