"""Metrics of the control process about services and canaries, as families. Pure.

Built from statuses and canary histories, which every target has, so that the series are the same on one machine and in
a cluster and survive a restart of the exporter.
"""

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from pilotlight.canaries.canary_state import ENDED, CanaryHistory, Phase
from pilotlight.contract import (
    LABEL_REVISION,
    METRIC_CANARY_CHECK,
    METRIC_CANARY_PHASE,
    METRIC_CANARY_WEIGHT,
    METRIC_GPU_MEMORY_RESERVED,
    METRIC_GPU_WAIT,
    METRIC_REPLICA_LIMITS,
    METRIC_REPLICA_PARKED_BYTES,
    METRIC_REPLICA_WAKE,
    METRIC_REPLICAS,
    METRIC_SCALE_DECISIONS,
    METRIC_SCALE_SIGNAL,
    METRIC_SCALE_TARGET,
    series_labels,
)
from pilotlight.targets.target import Key, ServiceStatus
from pilotlight.wire.prometheus_text import Family

# Labels (in addition to `namespace` and `inference_service`), type and help of each family.
TABLE: Final[Mapping[str, tuple[str, str, str]]] = {
    METRIC_REPLICAS: (
        "workload, revision, state",
        "gauge",
        "Replicas of a revision: desired, starting, ready, failed.",
    ),
    METRIC_REPLICA_LIMITS: ("workload, revision, bound", "gauge", "Replica bounds: min and max."),
    METRIC_SCALE_DECISIONS: ("workload, reason", "counter", "Scaling decisions that changed the desired replicas."),
    METRIC_SCALE_SIGNAL: ("workload, unit, metric", "gauge", "Value that the autoscaler compares with its target."),
    METRIC_SCALE_TARGET: ("workload, unit, metric", "gauge", "Target value of the autoscaler."),
    METRIC_GPU_MEMORY_RESERVED: (
        "revision, gpu, state",
        "gauge",
        "Memory of a GPU of this machine that replicas hold, by their state.",
    ),
    METRIC_GPU_WAIT: ("revision", "gauge", "How long the first replica that waits for a GPU has waited."),
    METRIC_REPLICA_PARKED_BYTES: ("revision", "gauge", "Host memory that parked replicas hold."),
    METRIC_REPLICA_WAKE: (
        "revision",
        "gauge",
        "How long the last wake of a replica took, with the check of its response; not of models that wake alone.",
    ),
    METRIC_CANARY_WEIGHT: ("revision, side", "gauge", "Traffic percentage of each side of a canary."),
    METRIC_CANARY_CHECK: ("revision, side, check", "gauge", "Last value of a canary check."),
    METRIC_CANARY_PHASE: ("revision, phase", "gauge", "1 for the current phase of a canary, 0 for the others."),
}
PHASES: Final[tuple[str, ...]] = get_args(Phase)


def new_family(name: str) -> Family:
    _, kind, text = TABLE[name]
    return Family(name, "counter" if kind == "counter" else "gauge", text)


def replicas(statuses: Iterable[ServiceStatus]) -> Family:
    result = new_family(METRIC_REPLICAS)
    for status in statuses:
        for row in status.revisions:
            labels = series_labels(status.namespace, status.name) | {"workload": row.workload, LABEL_REVISION: row.name}
            # A revision with a model that fails to load has at least one failed replica.
            failed = max(1, row.desired - row.ready) if row.model_state == "FailedToLoad" else 0
            states = {"desired": row.desired, "starting": row.starting, "ready": row.ready, "failed": failed}
            for state, number in states.items():
                result.add(number, **labels, state=state)
    return result


def decisions(counted: Mapping[tuple[Key, str, str], int]) -> Family:
    """Return the scale decisions by service, workload and reason."""
    result = new_family(METRIC_SCALE_DECISIONS)
    for (key, workload, reason), number in sorted(counted.items()):
        result.add(number, **series_labels(*key), workload=workload, reason=reason)
    return result


def canaries(histories: Iterable[tuple[Key, CanaryHistory]]) -> list[Family]:
    """Return the metrics of each service's current or last canary, unless a newer release superseded it.

    Checks and phase are exported after its end too, since both may change between two scrapes; weights are not.
    """
    weights, checks, phases = map(new_family, (METRIC_CANARY_WEIGHT, METRIC_CANARY_CHECK, METRIC_CANARY_PHASE))
    for key, history in histories:
        canary = history.current
        if canary is None or canary.phase == "Superseded":
            continue
        labels = series_labels(*key, canary.revision)
        stable_labels = series_labels(*key, canary.stable)
        for measurement in {each.check: each for each in canary.measurements}.values():  # the latest of each check
            if measurement.value is not None:
                checks.add(measurement.value, **labels, side="canary", check=measurement.check)
            if measurement.baseline is not None:
                checks.add(measurement.baseline, **stable_labels, side="stable", check=measurement.check)
        if canary.phase not in ENDED:
            weights.add(canary.weight, **labels, side="canary")
            weights.add(100 - canary.weight, **stable_labels, side="stable")
        for phase in PHASES:
            phases.add(int(phase == canary.phase), **labels, phase=phase)
    return [weights, checks, phases]
