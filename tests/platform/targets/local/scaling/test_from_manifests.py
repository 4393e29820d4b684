"""ScalingRules out of manifests: the ones that our own render makes, and errors that name object, field and fix."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotlight.errors import UsageError
from pilotlight.targets.local.scaling.decision import with_bounds
from pilotlight.targets.local.scaling.from_manifests import DEFAULT_DOWN, DEFAULT_UP, scaling_of
from pilotlight.targets.local.scaling.keda import scheduled_replicas
from pilotlight.targets.local.scaling.promql import evaluator
from pilotlight.targets.local.scaling.types import Fixed, Hpa, Kpa, Metric, Policy, ScalingRules

GOLDEN = Path(__file__).parents[4] / "cli" / "golden"
DEPLOYMENT: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "iris"}, "spec": {}}


def golden(name: str, *kinds: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((GOLDEN / name).read_text())
    return [found for found in documents if found and found.get("kind") in kinds and "spec" in found]


def service(concurrency: int = 0, **annotations: str) -> dict[str, Any]:
    notes = {f"autoscaling.knative.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    template = {"metadata": {"annotations": notes}, "spec": {"containerConcurrency": concurrency}}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "iris"},
        "spec": {"template": template},
    }


def scaled(trigger: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    usual = {"type": "prometheus", "name": "queue", "metadata": {"query": "sum(a)", "threshold": "4"}}
    return {
        "kind": "ScaledObject",
        "metadata": {"name": "iris", "annotations": spec.pop("annotations", {})},
        "spec": {"triggers": [trigger or usual], **spec},
    }


def test_what_render_makes_for_serverless_is_read() -> None:
    found = next(d for d in golden("iris.yaml", "Service") if "serving.knative.dev" in d["apiVersion"])
    rules = scaling_of(found, None)
    assert isinstance(rules, Kpa)
    assert (rules.metric, rules.target, rules.min_scale, rules.max_scale) == ("concurrency", 32.0, 0, 3)


def test_what_render_makes_for_keda_is_read_and_can_be_answered_here() -> None:
    rules = scaling_of(DEPLOYMENT, golden("iris-wake.yaml", "ScaledObject")[0])
    assert isinstance(rules, Hpa)
    assert [(m.name, m.source, m.kind, m.target, m.activation) for m in rules.metrics] == [
        ("requests", "requests", "AverageValue", 10.0, 0.0),
        ("latency", "prometheus", "Value", 0.2, 1_000_000.0),
    ]
    assert (rules.up, rules.down.window_s) == (ScalingRules((Policy("Pods", 1, 60),)), 300)
    assert (rules.cooldown_s, rules.polling_s, rules.fallback and rules.fallback.behavior) == (
        600, 15, "currentReplicasIfHigher",
    )  # fmt: skip


def test_every_query_that_render_makes_can_be_answered_here() -> None:
    queries = [
        metric.query
        for path in GOLDEN.glob("*.yaml")
        for found in golden(path.name, "ScaledObject")
        for metric in getattr(scaling_of(DEPLOYMENT, found), "metrics", ())
        if metric.query
    ]
    assert len(queries) >= 4
    assert not [reason for query in queries if (reason := evaluator.supported(query))]


def test_an_hpa_gets_the_defaults_of_kubernetes() -> None:
    rules = scaling_of(DEPLOYMENT, golden("flowers-sklearn.yaml", "HorizontalPodAutoscaler")[0])
    assert rules == Hpa(1, 4, (Metric("cpu", "cpu", "Utilization", 70.0),), DEFAULT_UP, DEFAULT_DOWN)


def test_a_workload_without_a_scaler_is_fixed() -> None:
    assert scaling_of({**DEPLOYMENT, "spec": {"replicas": 3}}, None) == Fixed(3)
    assert scaling_of(DEPLOYMENT, None) == Fixed(1)


KNATIVE = [
    (service(), Kpa()),
    (service(20), Kpa(target=20.0, container_concurrency=20)),
    (service(20, target="50"), Kpa(target=50.0, container_concurrency=20)),
    (service(metric="rps"), Kpa(metric="rps", target=200.0)),
    (service(window="1m30s", scale_down_delay="15m"), Kpa(window_s=90, scale_down_delay_s=900)),
    (service(target_utilization_percentage="50", target_burst_capacity="-1"), Kpa(utilization=0.5, burst_capacity=-1)),
    (service(initial_scale="3", max_scale="5"), Kpa(initial_scale=3, max_scale=5)),
    (service(activation_scale="2", max_scale="5"), Kpa(activation_scale=2, max_scale=5)),
    (service(minScale="2"), Kpa(min_scale=2)),
    (service(metric_aggregation_algorithm="weighted-exponential"), Kpa(algorithm="weightedExponential")),
    (service(scale_to_zero_pod_retention_period="81s"), Kpa(retention_s=81)),
    (service(panic_window_percentage="20.0"), Kpa(panic_window_percent=20)),
    (service(panic_threshold_percentage="150"), Kpa(panic_threshold_percent=150)),
]  # fmt: skip


@pytest.mark.parametrize(("manifest", "rules"), KNATIVE)
def test_annotations_of_a_template_are_read_with_knatives_defaults(manifest: dict[str, Any], rules: Kpa) -> None:
    assert scaling_of(manifest, None) == rules


def test_the_hpa_class_of_knative_is_an_hpa() -> None:
    rules = scaling_of(
        service(**{"class": "hpa.autoscaling.knative.dev"}, metric="cpu", target="60", window="30s"), None
    )
    assert isinstance(rules, Hpa)
    assert (rules.metrics[0].target, rules.min_replicas, rules.up.window_s, rules.keda) == (60.0, 1, 30.0, False)


NOTES = "spec.template.metadata.annotations"
UNBOUNDED = {"type": "prometheus", "metadata": {"query": "a"}}
UNASKED = {"type": "prometheus", "metadata": {"threshold": "1"}}
WRONG = [
    (service(window="5s"), None, f"Service iris: {NOTES}[autoscaling.knative.dev/window] = 5s"),
    (service(target="0"), None, "[autoscaling.knative.dev/target] = 0, must be a number from 0.01"),
    (service(min_scale="3", max_scale="2"), None, "max-scale] = 2, must be at least min-scale = 3"),
    (service(activation_scale="1"), None, "must be a whole number from 2"),
    (service(target_burst_capacity="-0.5"), None, "must be -1, 0 or more"),
    (service(metric="cpu"), None, "must be concurrency or rps"),
    (DEPLOYMENT, scaled({"type": "kafka"}), "ScaledObject iris: spec.triggers[0].type = kafka, must be one of"),
    (DEPLOYMENT, scaled(UNBOUNDED), "spec.triggers[0].metadata.threshold = nothing"),
    (DEPLOYMENT, scaled(UNASKED), "metadata.query = nothing, must be a query"),
    (DEPLOYMENT, scaled(minReplicaCount=5, maxReplicaCount=2), "spec.maxReplicaCount = 2, must be at least 5"),
    (DEPLOYMENT, scaled(minReplicaCount=1, idleReplicaCount=1), "idleReplicaCount = 1, must be below"),
    (DEPLOYMENT, scaled(fallback={"behavior": "sideways"}), "spec.fallback.behavior = sideways, must be static"),
    (DEPLOYMENT, scaled(triggers=[]), "spec.triggers = [], must name at least one trigger"),
    (DEPLOYMENT, scaled(advanced={"scalingModifiers": {"formula": "queue + depth"}}), "depth is none"),
    (DEPLOYMENT, scaled(annotations={"autoscaling.keda.sh/paused": "maybe"}), "paused] = maybe, must be true"),
    (DEPLOYMENT, {"kind": "VerticalPodAutoscaler", "metadata": {"name": "v"}}, "VerticalPodAutoscaler v: kind"),
    (DEPLOYMENT, {"kind": "HorizontalPodAutoscaler", "metadata": {}}, "spec.maxReplicas = nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "autoscaler", "message"), WRONG)
def test_a_wrong_field_is_named_with_its_fix(
    workload: dict[str, Any], autoscaler: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        scaling_of(workload, autoscaler)
    assert message in str(caught.value)


def test_a_cron_trigger_is_a_schedule() -> None:
    data = {"start": "0 8 * * *", "end": "0 18 * * *", "timezone": "UTC", "desiredReplicas": "3"}
    rules = scaling_of(DEPLOYMENT, scaled({"type": "cron", "metadata": data}))
    assert isinstance(rules, Hpa)
    [metric] = rules.metrics
    values = [scheduled_replicas(metric, datetime(2026, 11, 18, hour, tzinfo=UTC)) for hour in (7, 8, 18)]
    assert values == [0.0, 3.0, 0.0]
    with pytest.raises(UsageError, match="must be a schedule: '8' must have five fields"):
        scaling_of(DEPLOYMENT, scaled({"type": "cron", "metadata": {**data, "start": "8"}}))


def test_pauses_are_read_from_annotations() -> None:
    rules = scaling_of(DEPLOYMENT, scaled(annotations={"autoscaling.keda.sh/paused-replicas": "2"}))
    assert isinstance(rules, Hpa)
    assert (rules.paused_replicas, rules.paused) == (2, False)


BOUNDS = [
    (Kpa(max_scale=4), 2, None, Kpa(min_scale=2, max_scale=4, activation_scale=2)),
    (Kpa(max_scale=4), 6, None, Kpa(min_scale=6, max_scale=6, activation_scale=6)),
    (Kpa(min_scale=3, max_scale=4), None, 2, Kpa(min_scale=2, max_scale=2, activation_scale=2)),
    (Kpa(), None, None, Kpa()),
    (Kpa(), 1, None, Kpa(min_scale=1)),
    (Fixed(3), 5, None, Fixed(5)),
    (Fixed(3), None, 1, Fixed(1)),
    (Hpa(1, 4, (), DEFAULT_UP, DEFAULT_DOWN), 0, None, Hpa(1, 4, (), DEFAULT_UP, DEFAULT_DOWN)),
    (Hpa(1, 4, (), DEFAULT_UP, DEFAULT_DOWN, keda=True), 0, 0, Hpa(0, 1, (), DEFAULT_UP, DEFAULT_DOWN, keda=True)),
    (Hpa(1, 4, (), DEFAULT_UP, DEFAULT_DOWN, keda=True), 5, None, Hpa(5, 5, (), DEFAULT_UP, DEFAULT_DOWN, keda=True)),
]


@pytest.mark.parametrize(("rules", "low", "high", "wanted"), BOUNDS)
def test_live_bounds_win_over_the_manifests(rules: Any, low: int | None, high: int | None, wanted: Any) -> None:
    assert with_bounds(rules, low, high) == wanted
