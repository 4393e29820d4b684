"""What the control process of one machine exports of its scaling: bounds, signals, decisions; and whom to scrape.

Made of what runs at the moment that somebody scrapes the control API.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    METRIC_REPLICA_LIMITS,
    METRIC_SCALE_SIGNAL,
    METRIC_SCALE_TARGET,
)
from pilotlight.observability import families
from pilotlight.observability.exposition import Family
from pilotlight.targets.local.scaling import kpa
from pilotlight.targets.local.scaling.model import Hpa, Kpa, Scaling
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.units import Unit, least
from pilotlight.targets.target import Key, ServiceStatus

Json = Any
# Told as 0 before they happen: a counter that is born with 1 has not risen, as Prometheus sees it.
USUAL: Final = ("activation", "stable", "panic", "zero", "more", "fewer", "cooldown", "fallback", "yield")
SCRAPED: Final = frozenset({"starting", "ready", "unready", "parking", "parked", "draining"})
HOST: Final = "127.0.0.1"


def scaling(runs: Sequence[ServiceRun], statuses: Sequence[ServiceStatus], now: float) -> list[Family]:
    return [limits(runs, statuses, now), *signals(runs, now), decisions(runs)]


def decisions(runs: Iterable[ServiceRun]) -> Family:
    """Summed over the units of a workload; those of revisions that are forgotten are forgotten with them."""
    counted: Counter[tuple[Key, str, str]] = Counter()
    for run in runs:
        for unit in run.units.values():
            for rule, number in {**dict.fromkeys(USUAL, 0), **unit.decisions}.items():
                counted[run.key, workload_of(run, unit), rule or "other"] += number
    return families.decisions(counted)


def limits(runs: Iterable[ServiceRun], statuses: Iterable[ServiceStatus], now: float) -> Family:
    """One that has no upper bound, or is fixed, has no `max` that it could be held against."""
    made, by_key = families.family(METRIC_REPLICA_LIMITS), {run.key: run for run in runs}
    for status in statuses:
        run = by_key[status.namespace, status.name]
        for row in status.revisions:
            unit = run.unit_of(run.revisions[row.name], now)
            held = unit.bounded(run.override_of(unit.name))
            whose = {**families.of(run.key), "workload": row.workload, LABEL_REVISION: row.name}
            made.add(least(held), **whose, bound="min")
            if most(held):
                made.add(most(held), **whose, bound="max")
    return made


def most(held: Scaling) -> int:
    """0: no limit, or nothing that scales."""
    return held.max_scale if isinstance(held, Kpa) else held.max_replicas if isinstance(held, Hpa) else 0


def signals(runs: Iterable[ServiceRun], now: float) -> tuple[Family, Family]:
    """A target whose signal is missing is one that nobody could tell."""
    measured, wanted = families.family(METRIC_SCALE_SIGNAL), families.family(METRIC_SCALE_TARGET)
    for run in runs:
        for unit in run.units.values():
            for metric, value, target in compared(unit, now) if unit.desired else ():
                whose = {**families.of(run.key), "workload": workload_of(run, unit), "unit": unit.name}
                wanted.add(target, **whose, metric=metric)
                if value is not None:
                    measured.add(value, **whose, metric=metric)
    return measured, wanted


def compared(unit: Unit, now: float) -> Iterator[tuple[str, float | None, float]]:
    """(metric, what was measured, what it is held against), both as the autoscaler compares them."""
    rules = unit.scaling
    if isinstance(rules, Kpa):
        seen = [each for each in unit.traffic.samples if each.at > now - rules.window_s]
        loads = [each.requests if rules.metric == "rps" else each.concurrency for each in seen]
        yield rules.metric, sum(loads) / len(loads) / unit.desired if loads else 0.0, kpa.target(rules)
    elif isinstance(rules, Hpa):
        for metric in rules.metrics:
            if metric.source == "requests":  # read off the samples by the decision itself
                load = float(unit.traffic.waiting + unit.traffic.in_flight)
                yield metric.name, load / unit.desired if metric.kind == "AverageValue" else load, metric.target
                continue
            value = unit.metrics.get(metric.name)
            shared = metric.kind == "AverageValue" and metric.source == "prometheus"
            yield metric.name, value / unit.desired if value is not None and shared else value, metric.target


def workload_of(run: ServiceRun, unit: Unit) -> str:
    """A unit is a revision of it, or the workload itself."""
    revision = run.revisions.get(unit.name)
    return revision.spec.workload if revision else unit.name


def targets(replicas: Iterable[Replica], gateway_port: int, api: str) -> list[dict[str, Json]]:
    """As Prometheus' HTTP service discovery wants them. `api` is where the control API itself answers."""
    found = [_target(api, job="pilotlight-control"), _target(f"{HOST}:{gateway_port}", job="pilotlight-gateway")]
    return found + [_replica(each) for each in replicas if each.state in SCRAPED and each.port]


def _replica(replica: Replica) -> dict[str, Json]:
    whose = {LABEL_NAMESPACE: replica.namespace, LABEL_SERVICE: replica.service, LABEL_REVISION: replica.revision}
    return _target(f"{HOST}:{replica.port}", job="pilotlight-predictor", pod=replica.id, **whose)


def _target(address: str, **labels: str) -> dict[str, Json]:
    return {"targets": [address], "labels": labels}
