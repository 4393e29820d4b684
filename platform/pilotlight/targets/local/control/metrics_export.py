"""Scaling metrics of the control process (bounds, signals, decisions), and scrape targets for service discovery.

Computed from run-time state when the control API is scraped.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pilotlight.contract import (
    LABEL_REVISION,
    METRIC_GPU_MEMORY_RESERVED,
    METRIC_GPU_WAIT,
    METRIC_REPLICA_LIMITS,
    METRIC_REPLICA_PARKED_BYTES,
    METRIC_REPLICA_WAKE,
    METRIC_SCALE_SIGNAL,
    METRIC_SCALE_TARGET,
    series_labels,
)
from pilotlight.observability import control_metrics
from pilotlight.targets.local.control.service_state import ServiceRun, Unit, max_replicas, min_replicas
from pilotlight.targets.local.control_process_launcher import HOST
from pilotlight.targets.local.scaling import kpa
from pilotlight.targets.local.scaling.types import Hpa, Kpa, Rule
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import Key, ServiceStatus
from pilotlight.wire.prometheus_text import Family

Json = Any
# Exported as 0 before they occur: Prometheus' increase() ignores a counter that appears with 1.
SCALING_RULES: Final = get_args(Rule)
REPLICA_METRICS: Final = "/metrics/replicas"
SCRAPED_STATES: Final = frozenset({"starting", "ready", "unready", "parking", "parked", "draining"})


def scaling(runs: Sequence[ServiceRun], statuses: Sequence[ServiceStatus], now: float) -> list[Family]:
    return [limits(runs, statuses, now), *signals(runs, now), decisions(runs)]


def decisions(runs: Iterable[ServiceRun]) -> Family:
    """Return decisions summed over the units of a workload; expired revisions no longer count."""
    counted: Counter[tuple[Key, str, str]] = Counter()
    for run in runs:
        for unit in run.units.values():
            for rule, number in {**dict.fromkeys(SCALING_RULES, 0), **unit.decisions}.items():
                counted[run.key, workload_of(run, unit), rule or "other"] += number
    return control_metrics.decisions(counted)


def limits(runs: Iterable[ServiceRun], statuses: Iterable[ServiceStatus], now: float) -> Family:
    """Return the bounds by revision; without an upper bound there is no `max` sample."""
    family, by_key = control_metrics.new_family(METRIC_REPLICA_LIMITS), {run.key: run for run in runs}
    for status in statuses:
        run = by_key[status.namespace, status.name]
        for row in status.revisions:
            unit = run.unit_of(run.revisions[row.name], now)
            bounded = unit.bounded(run.override_of(unit.name))
            labels = {**series_labels(*run.key), "workload": row.workload, LABEL_REVISION: row.name}
            family.add(min_replicas(bounded), **labels, bound="min")
            if max_replicas(bounded):
                family.add(max_replicas(bounded), **labels, bound="max")
    return family


def signals(runs: Iterable[ServiceRun], now: float) -> tuple[Family, Family]:
    """Return measured values and targets; a target without a value could not be measured."""
    measured, targets = control_metrics.new_family(METRIC_SCALE_SIGNAL), control_metrics.new_family(METRIC_SCALE_TARGET)
    for run in runs:
        for unit in run.units.values():
            for metric, value, target in compared(unit, now) if unit.desired else ():
                labels = series_labels(*run.key) | {"workload": workload_of(run, unit), "unit": unit.name}
                targets.add(target, **labels, metric=metric)
                if value is not None:
                    measured.add(value, **labels, metric=metric)
    return measured, targets


def gpus(replicas: Iterable[Replica], waits: Mapping[str, float], memory: Mapping[str, int]) -> list[Family]:
    """Return who holds memory of which GPU, and who waits; `waits` by replica, `memory` of whole GPUs by their id."""
    reserved, waiting, parked, wakes = map(
        control_metrics.new_family,
        (METRIC_GPU_MEMORY_RESERVED, METRIC_GPU_WAIT, METRIC_REPLICA_PARKED_BYTES, METRIC_REPLICA_WAKE),
    )
    host: Counter[tuple[Key, str]] = Counter()
    woken: dict[tuple[Key, str], float] = {}
    held: Counter[tuple[Key, str, str, str]] = Counter()
    longest: dict[tuple[Key, str], float] = {}
    for each in replicas:
        key = (each.namespace, each.service)
        if each.id in waits:
            longest[key, each.revision] = max(waits[each.id], longest.get((key, each.revision), 0.0))
        if each.state == "parked":
            host[key, each.revision] += each.parked_bytes
        if each.wake_s and each.state != "exited":
            woken[key, each.revision] = each.wake_s
        if each.state not in ("parked", "exited"):
            for gpu in map(str, each.gpus):
                held[key, each.revision, gpu, each.state] += each.gpu_memory or memory.get(gpu, 0)
    for (key, revision, gpu, state), size in held.items():
        reserved.add(size, **series_labels(*key, revision), gpu=gpu, state=state)
    for (key, revision), seconds in longest.items():
        waiting.add(seconds, **series_labels(*key, revision))
    for family, values in ((parked, host), (wakes, woken)):
        for (key, revision), value in values.items():
            family.add(value, **series_labels(*key, revision))
    return [reserved, waiting, parked, wakes]


def compared(unit: Unit, now: float) -> Iterator[tuple[str, float | None, float]]:
    """Yield (metric, measured value, target) as the autoscaler compares them."""
    rules = unit.scaling
    if isinstance(rules, Kpa):
        samples = [each for each in unit.traffic.samples if each.at > now - rules.window_s]
        loads = [each.requests if rules.metric == "rps" else each.concurrency for each in samples]
        yield rules.metric, sum(loads) / len(loads) / unit.desired if loads else 0.0, kpa.target(rules)
    elif isinstance(rules, Hpa):
        for metric in rules.metrics:
            if metric.source == "requests":  # not in unit.metrics: the decision reads it from the samples
                load = float(unit.traffic.waiting + unit.traffic.in_flight)
                yield metric.name, load / unit.desired if metric.kind == "AverageValue" else load, metric.target
                continue
            value = unit.metrics.get(metric.name)
            shared = metric.kind == "AverageValue" and metric.source == "prometheus"
            yield metric.name, value / unit.desired if value is not None and shared else value, metric.target


def workload_of(run: ServiceRun, unit: Unit) -> str:
    """Return the workload of a unit, which is one of its revisions or the workload itself."""
    revision = run.revisions.get(unit.name)
    return revision.spec.workload if revision else unit.name


def targets(replicas: Iterable[Replica], gateway_port: int, api: str) -> list[dict[str, Json]]:
    """Return targets in the format of Prometheus' HTTP service discovery. `api` is the control API's address.

    It also gives the metrics of replicas: they listen on unix sockets, which Prometheus does not know.
    """
    platform = [_target(api, job="pilotlight-control"), _target(f"{HOST}:{gateway_port}", job="pilotlight-gateway")]
    predictors = []
    for each in replicas:
        if each.state in SCRAPED_STATES and each.port:
            labels = series_labels(each.namespace, each.service, each.revision)
            labels |= {"instance": each.id, "__metrics_path__": f"{REPLICA_METRICS}/{each.id}"}
            predictors.append(_target(api, job="pilotlight-predictor", pod=each.id, **labels))
    return platform + predictors


def _target(address: str, **labels: str) -> dict[str, Json]:
    return {"targets": [address], "labels": labels}
