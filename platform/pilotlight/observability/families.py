"""What the control process tells of services and canaries, as families of metrics. Pure: made of what targets show.

Made from statuses and ledgers, which every target has, so that the same series come from one machine and from a
cluster, and a restart of whoever tells them changes none.
"""

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from pilotlight.canary.model import ENDED, Canary, Ledger, Phase
from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    METRIC_CANARY_CHECK,
    METRIC_CANARY_PHASE,
    METRIC_CANARY_WEIGHT,
    METRIC_REPLICA_LIMITS,
    METRIC_REPLICAS,
    METRIC_SCALE_DECISIONS,
    METRIC_SCALE_SIGNAL,
    METRIC_SCALE_TARGET,
)
from pilotlight.observability.exposition import Family
from pilotlight.targets.target import Key, RevisionStatus, ServiceStatus

# Every family of the page: its labels beside `namespace` and `inference_service`, its kind, what it says.
TABLE: Final[Mapping[str, tuple[str, str, str]]] = {
    METRIC_REPLICAS: (
        "workload, revision, state",
        "gauge",
        "Replicas of a revision: desired, starting, ready, failed.",
    ),
    METRIC_REPLICA_LIMITS: ("workload, revision, bound", "gauge", "How many replicas may run: min and max."),
    METRIC_SCALE_DECISIONS: ("workload, reason", "counter", "Decisions that changed how many replicas shall run."),
    METRIC_SCALE_SIGNAL: ("workload, unit, metric", "gauge", "What an autoscaler measures, as it compares it."),
    METRIC_SCALE_TARGET: ("workload, unit, metric", "gauge", "What it compares its signal with."),
    METRIC_CANARY_WEIGHT: ("revision, side", "gauge", "Percent of the requests that a side of a canary gets."),
    METRIC_CANARY_CHECK: ("revision, side, check", "gauge", "What a check of a canary measured last."),
    METRIC_CANARY_PHASE: ("revision, phase", "gauge", "1 for the phase that a canary is in, 0 for the others."),
}
PHASES: Final[tuple[str, ...]] = get_args(Phase)


def family(name: str) -> Family:
    _, kind, text = TABLE[name]
    return Family(name, "counter" if kind == "counter" else "gauge", text)


def of(key: Key) -> dict[str, str]:
    return {LABEL_NAMESPACE: key[0], LABEL_SERVICE: key[1]}


def replicas(statuses: Iterable[ServiceStatus]) -> Family:
    made = family(METRIC_REPLICAS)
    for status in statuses:
        for row in status.revisions:
            whose = {**of((status.namespace, status.name)), "workload": row.workload, LABEL_REVISION: row.name}
            for state, number in _states(row).items():
                made.add(number, **whose, state=state)
    return made


def _states(row: RevisionStatus) -> dict[str, int]:
    """A revision whose model cannot be loaded may have no replica at all just now: it counts as one at least."""
    failed = max(1, row.desired - row.ready) if row.model_state == "FailedToLoad" else 0
    return {"desired": row.desired, "starting": row.starting, "ready": row.ready, "failed": failed}


def decisions(counted: Mapping[tuple[Key, str, str], int]) -> Family:
    """By service, workload and the rule that decided."""
    made = family(METRIC_SCALE_DECISIONS)
    for (key, workload, reason), number in sorted(counted.items()):
        made.add(number, **of(key), workload=workload, reason=reason)
    return made


def canaries(kept: Iterable[tuple[Key, Ledger]]) -> list[Family]:
    """Of the canary that runs or ran last; one that a newer release has made pointless tells nothing any more.

    What was measured and how it ended outlives it, since both may come between two scrapes; its shares are over.
    """
    weights, checks, phases = map(family, (METRIC_CANARY_WEIGHT, METRIC_CANARY_CHECK, METRIC_CANARY_PHASE))
    for key, ledger in kept:
        canary = ledger.current
        if canary is None or canary.phase == "Superseded":
            continue
        _checks(checks, key, canary)
        if canary.phase not in ENDED:
            weights.add(canary.weight, **of(key), **{LABEL_REVISION: canary.revision}, side="canary")
            weights.add(100 - canary.weight, **of(key), **{LABEL_REVISION: canary.stable}, side="stable")
        for phase in PHASES:
            phases.add(int(phase == canary.phase), **of(key), **{LABEL_REVISION: canary.revision}, phase=phase)
    return [weights, checks, phases]


def _checks(family: Family, key: Key, canary: Canary) -> None:
    for measurement in {each.check: each for each in canary.measurements}.values():  # the last of each
        sides = ((canary.revision, "canary", measurement.value), (canary.stable, "stable", measurement.baseline))
        for revision, side, value in sides:
            if value is not None:
                labels = {LABEL_REVISION: revision, "side": side, "check": measurement.check}
                family.add(value, **of(key), **labels)
