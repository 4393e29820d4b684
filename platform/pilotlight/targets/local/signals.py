"""What autoscalers of Deployments and canaries ask for beside requests: CPU, memory, and Prometheus queries.

Queries are answered from the replicas' own metrics, which are read here as Prometheus would, or by a real Prometheus
when its address was given; without its client library, canaries go on with the replicas' own. Nobody is asked about
units that have no such metric, and no canary.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pilotlight.canary.prometheus import INSTALL, installed
from pilotlight.canary.prometheus import ask as ask_server
from pilotlight.contract import LABEL_NAMESPACE, LABEL_REVISION, LABEL_SERVICE, METRIC_GATEWAY_LOST
from pilotlight.errors import UsageError
from pilotlight.targets.local.fleet import Fleet
from pilotlight.targets.local.scaling import prometheus
from pilotlight.targets.local.scaling.model import Hpa, Metric, Scaling
from pilotlight.targets.local.scaling.promql import Evaluator
from pilotlight.targets.local.scaling.promql_syntax import UnsupportedQuery
from pilotlight.targets.local.scaling.triggers import answer
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.asking import ask
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.local.units import Unit
from pilotlight.targets.target import Key, Sample

SCRAPE_S: Final = 5.0
SCRAPE_TIMEOUT_S: Final = 3.0
FRESH_S: Final = 0.5  # whoever asks gets figures that are no older
log = logging.getLogger(__name__)


class Seen(NamedTuple):
    at: float
    cpu_seconds: float


class Signals:
    """Answers at once from what was last seen; what takes time is done by `follow`, beside the beat."""

    def __init__(self, supervisor: Supervisor, clock: Callable[[], float], server: str = "") -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._server = server
        self._asks_server = bool(server) and installed()  # canaries do; triggers need no client library
        self._evaluator = Evaluator()
        self._cpu: dict[str, tuple[Seen | None, Seen]] = {}  # by replica, the older one first
        self._scraped_at = 0.0
        self._asked_at: dict[tuple[str, str], float] = {}
        self._failed: dict[str, str] = {}  # by query; a failure is told once
        self._work: asyncio.Task[None] | None = None
        self._lost: dict[tuple[str, str, str], int] = {}  # by namespace, service and revision, since this process began
        self.tried: set[Key] = set()  # services with a canary, whose replicas are read whatever scales them

    def of(self, unit: Unit, replicas: Sequence[Replica], now: float) -> dict[str, float | None]:
        """Each metric of the unit by its name."""
        if not isinstance(unit.scaling, Hpa):
            return {}
        for metric in unit.scaling.metrics:
            if metric.source in ("cpu", "memory"):
                unit.metrics[metric.name] = self._usage(unit, metric, replicas, now)
        return unit.metrics

    def _usage(self, unit: Unit, metric: Metric, replicas: Sequence[Replica], now: float) -> float | None:
        """Mean over the ready replicas: of CPU in percent of what was asked for, or cores; of memory in bytes."""
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
        # Who was not measured yet counts as idle, as those that start do, but is no reason for fewer.
        return max(metric.target, used * len(rates) / len(ready))

    def _cpu_rate(self, replica: Replica, now: float) -> float | None:
        """Over five to ten seconds: one busy second is no reason for another replica.

        Nor are the first five of one that has just become ready, in which it reads what a quick start left out.
        """
        seen = Seen(now, self._supervisor.usage(replica.id).cpu_seconds)
        older, newer = self._cpu.get(replica.id, (None, seen))
        if now - newer.at >= SCRAPE_S:
            older, newer = newer if older else seen, seen
        self._cpu[replica.id] = older, newer
        if older is None or now - older.at < SCRAPE_S:
            return None
        return (seen.cpu_seconds - older.cpu_seconds) / (now - older.at)

    def forget(self, replica: Replica) -> None:
        self._cpu.pop(replica.id, None)
        self._evaluator.forget(_labels(replica))

    def count_lost(self, key: Key, revision: str, requests: int) -> None:
        """A replica that dies takes its counts with it; the gateway, which had to answer in its place, tells them."""
        if requests:
            self._lost[*key, revision] = self._lost.get((*key, revision), 0) + requests

    def forget_lost(self, key: Key, revisions: Iterable[str]) -> None:
        """They are gone: nobody will ask for what they lost."""
        for revision in revisions:
            self._lost.pop((*key, revision), None)

    def follow(self, fleet: Fleet, runs: Iterable[ServiceRun], now: float) -> None:
        """Reads metrics and asks queries that are due, in a task of its own and never two at a time."""
        found = list(runs)
        asking = [(run, unit) for run in found for unit in run.units.values() if queries(unit.scaling)]
        read = {run.key: run for run in found if run.key in self.tried} | {run.key: run for run, _ in asking}
        if read and (self._work is None or self._work.done()):
            replicas = [replica for run in read.values() for replica in fleet.staying(run)]
            self._work = asyncio.get_running_loop().create_task(self._follow(asking, replicas, now))

    async def _follow(self, asking: Sequence[tuple[ServiceRun, Unit]], replicas: Sequence[Replica], now: float) -> None:
        for _, unit in asking:
            for metric in queries(unit.scaling):
                with suppress(UnsupportedQuery):  # of a service that was deployed while there was a Prometheus
                    self._evaluator.watch(metric.query)
        await self._read(replicas, SCRAPE_S)
        for run, unit in asking:
            assert isinstance(unit.scaling, Hpa)
            due = now - self._asked_at.get((run.key[0], unit.name), 0.0) >= min(unit.scaling.polling_s, 15.0)
            if due:
                self._asked_at[run.key[0], unit.name] = now
                for metric in queries(unit.scaling):
                    unit.metrics[metric.name] = await self._ask(metric)

    async def query(self, promql: str, replicas: Sequence[Replica]) -> list[Sample]:
        """Asked by canaries: the answer is of this moment. What a query is about is kept from its first time on."""
        if self._asks_server:
            return await asyncio.to_thread(ask_server, self._server, promql)
        try:
            fresh = self._evaluator.watch(promql)
        except UnsupportedQuery as error:
            if not self._server:
                raise
            raise UsageError(
                f"this query can be answered by Prometheus alone, through its client: {INSTALL}"
            ) from error
        await self._read(replicas, 0.0 if fresh else FRESH_S)
        now = self._clock()
        newest = self._evaluator.newest(promql)
        at = time.time() - (now - newest) if newest is not None else 0.0
        return [Sample(dict(labels), value, at) for labels, value in self._evaluator.vector(promql, now).items()]

    async def _read(self, replicas: Sequence[Replica], age_s: float) -> None:
        """Unless it was done just now; a real Prometheus that everybody can ask does it itself."""
        if self._asks_server or self._clock() - self._scraped_at < age_s:
            return
        self._scraped_at = self._clock()
        ready = {replica.id: replica for replica in replicas if replica.state == "ready"}
        for (namespace, service, revision), requests in self._lost.items():
            labels = {LABEL_NAMESPACE: namespace, LABEL_SERVICE: service, LABEL_REVISION: revision}
            self._evaluator.note(METRIC_GATEWAY_LOST, labels, requests, self._scraped_at)
        await asyncio.gather(*(self._scrape(replica) for replica in ready.values()))

    async def _scrape(self, replica: Replica) -> None:
        page = await ask(replica.port, "/metrics", SCRAPE_TIMEOUT_S)
        if not page.ok:
            self._evaluator.lost(_labels(replica), self._clock())
            return
        with suppress(ValueError):
            self._evaluator.ingest(page.body.decode(), _labels(replica), self._clock())

    async def _ask(self, metric: Metric) -> float | None:
        """None: nobody could tell, which counts as a failure of the scaler."""
        try:
            if not self._server:
                return answer(metric, self._evaluator.evaluate(metric.query, self._clock()))
            return answer(metric, await prometheus.ask(self._server, metric.query, 0.0))
        except (prometheus.ScalerFailed, UnsupportedQuery) as error:
            if self._failed.get(metric.query) != str(error):
                self._failed[metric.query] = str(error)
                log.warning("%s: %s", metric.name, error)
            return None


def queries(scaling: Scaling) -> list[Metric]:
    return [metric for metric in scaling.metrics if metric.source == "prometheus"] if isinstance(scaling, Hpa) else []


def _labels(replica: Replica) -> dict[str, str]:
    """As a monitor would label what it scrapes."""
    return {
        LABEL_SERVICE: replica.service, LABEL_NAMESPACE: replica.namespace, LABEL_REVISION: replica.revision,
        "pod": replica.id,
    }  # fmt: skip
