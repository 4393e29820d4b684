"""Rules of decisions: which one is named, and that the metric of decisions exports every one of them from the start."""

from dataclasses import replace
from typing import get_args

import pytest

from pilotlight.targets.local.control.metrics_export import SCALING_RULES
from pilotlight.targets.local.scaling.decision import decide
from pilotlight.targets.local.scaling.from_manifests import DEFAULT_DOWN, DEFAULT_UP
from pilotlight.targets.local.scaling.types import (
    Decision,
    Fallback,
    Fixed,
    Hpa,
    Kpa,
    Metric,
    Observed,
    Rule,
    Sample,
    Scaling,
)

QUEUE = Metric("queue", "prometheus", "AverageValue", 10, ignore_null=False)
HPA = Hpa(1, 10, (QUEUE,), DEFAULT_UP, DEFAULT_DOWN)
KEDA = replace(HPA, min_replicas=0, keda=True)
BY_CONTROL = {"yield", "unreachable"}  # decided by autoscaler.py and service_state.py


def idle(replicas: int, ready: int | None = None, *, was_ready: bool = True) -> Observed:
    return Observed(replicas, replicas if ready is None else ready, was_ready=was_ready)


def load(concurrency: float, replicas: int = 1, at: float = 0.0) -> Observed:
    return Observed(replicas, replicas, [Sample(at, concurrency, concurrency)])


def queue(length: float | None, replicas: int = 1) -> Observed:
    return Observed(replicas, replicas, metrics={"queue": length})


KPA_CASES: list[tuple[Rule, Scaling, list[tuple[float, Observed]]]] = [
    ("stable", Kpa(target=10), [(0.0, load(5))]),
    ("panic", Kpa(target=10), [(0.0, load(50))]),
    ("delay", Kpa(target=10, scale_down_delay_s=300), [(0.0, load(10)), (100.0, load(1, at=100.0))]),
    ("minimum", Kpa(min_scale=2), [(0.0, idle(1))]),
    ("maximum", Kpa(target=10, max_scale=1), [(0.0, load(50))]),
    ("initial", Kpa(initial_scale=3), [(0.0, idle(0, was_ready=False))]),
    ("activation", Kpa(), [(0.0, idle(1, 0, was_ready=False))]),
    ("deadline", Kpa(), [(0.0, idle(1, 0, was_ready=False)), (700.0, idle(1, 0, was_ready=False))]),
    ("window", Kpa(), [(0.0, idle(1))]),
    ("grace", Kpa(), [(0.0, idle(1)), (60.0, idle(1))]),
    ("retention", Kpa(retention_s=600), [(0.0, idle(1)), (60.0, idle(1)), (100.0, idle(1))]),
    ("zero", Kpa(), [(0.0, idle(0))]),
]
HPA_CASES: list[tuple[Rule, Scaling, list[tuple[float, Observed]]]] = [
    ("metrics", HPA, [(0.0, queue(20))]),
    ("policy", HPA, [(0.0, queue(90))]),
    ("bound", HPA, [(0.0, queue(900, 8))]),
    ("window", HPA, [(0.0, queue(10, 5))]),
    ("missing", HPA, [(0.0, queue(None))]),
    ("minimum", replace(HPA, min_replicas=3), [(0.0, queue(10))]),
    ("maximum", HPA, [(0.0, queue(10, 11))]),
]
KEDA_CASES: list[tuple[Rule, Scaling, list[tuple[float, Observed]]]] = [
    ("zero", KEDA, [(0.0, queue(0, 0))]),
    ("activation", KEDA, [(0.0, queue(5, 0))]),
    ("failed", KEDA, [(0.0, queue(None, 0))]),
    ("cooldown", replace(KEDA, down=replace(DEFAULT_DOWN, window_s=0)), [(0.0, queue(5)), (1.0, queue(0))]),
    ("idle", replace(KEDA, min_replicas=2, idle_replicas=1), [(0.0, queue(20, 2)), (400.0, queue(0, 2))]),
    ("fallback", replace(KEDA, fallback=Fallback(0, 4)), [(0.0, queue(None))]),
    ("paused", replace(KEDA, paused=True), [(0.0, queue(5))]),
    ("fixed", Fixed(2), [(0.0, idle(0))]),
]
CASES = [*KPA_CASES, *HPA_CASES, *KEDA_CASES]


@pytest.mark.parametrize(("rule", "scaling", "steps"), CASES)
def test_a_decision_names_its_rule(rule: Rule, scaling: Scaling, steps: list[tuple[float, Observed]]) -> None:
    decision: Decision | None = None
    for now, observed in steps:
        decision = decide(scaling, observed, decision.state if decision else None, now)
    assert decision is not None
    assert decision.rule == rule, decision.reason


def test_every_rule_is_exported_and_none_is_exported_that_no_decision_has() -> None:
    assert set(SCALING_RULES) == set(get_args(Rule)) == {rule for rule, _, _ in CASES} | BY_CONTROL
