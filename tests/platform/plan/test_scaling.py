from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    FOREIGN,
    annotated,
    changed,
    codes,
    in_mode,
    keda,
    kserve,
    ome,
    planned,
    raw,
    reason,
    refusals,
    with_component,
    workload,
)

from pilotlight.plan.types import Capabilities, Current
from pilotlight.spec.service import NodeGroup, ScalingMetric, Service

LATENCY = ScalingMetric("external", "prometheus", "Value", "0.5", "histogram_quantile(0.9, x_bucket)", "http://p:9090")
KNATIVE = "autoscaling.knative.dev/"
STANDARD = in_mode(kserve(), "Standard")


def hpa_class(service: Service, value: str) -> Service:
    key = "ome.io/autoscalerClass" if service.group == "ome" else "serving.kserve.io/autoscalerClass"
    return annotated(service, **{key: value})


OWNERS = [
    (ome(), "hpa", "no setting needs KEDA"),
    (ome(scale_metric="memory"), "hpa", "no setting needs KEDA"),
    (ome(keda=keda()), "keda", "kedaConfig.enableKeda"),
    (replace(ome(), keda=keda()), "keda", "kedaConfig.enableKeda"),
    (ome(keda=keda(enabled=None, query="sum(x)", threshold="1")), "keda", "kedaConfig is set"),
    (ome(keda=keda(enabled=False, query="sum(x)", threshold="1")), "hpa", "no setting needs KEDA"),
    (ome(scale_metric="concurrency"), "keda", "an HPA cannot see"),
    (ome(scale_metric="rps"), "keda", "an HPA cannot see"),
    (raw(ome(min_replicas=0)), "keda", "minReplicas = 0"),
    (ome(annotations={"pilotlight.dev/triggers": "queue-depth=4"}), "keda", "pilotlight.dev/triggers"),
    (hpa_class(ome(), "keda"), "keda", "ome.io/autoscalerClass = keda"),
    (hpa_class(ome(), "none"), "none", "ome.io/autoscalerClass = none"),
    (hpa_class(STANDARD, "external"), "external", "serving.kserve.io/autoscalerClass = external"),
    (changed(STANDARD, metrics=(LATENCY,)), "keda", "autoScaling.metrics"),
    (changed(STANDARD, min_replicas=0), "keda", "minReplicas = 0"),
    (ome(worker=NodeGroup(size=1)), "hpa", "no setting needs KEDA"),
    (in_mode(ome(), "Stateful"), "none", "not interchangeable"),
    (ome(min_replicas=0), "kpa", "scaled by Knative"),
]


@pytest.mark.parametrize(("service", "owner", "why"), OWNERS)
def test_one_autoscaler_owns_each_workload_for_a_reason_that_is_told(service: Service, owner: str, why: str) -> None:
    role = next(iter(service.components))
    value, because = reason(planned(service), f"{role}: autoscaler")
    assert (value, why in because) == (owner, True), because


def test_replicas_are_written_only_where_nobody_scales() -> None:
    assert workload(ome(min_replicas=2)).replicas is None
    assert workload(ome(keda=keda())).replicas is None
    assert workload(hpa_class(ome(min_replicas=2), "external")).replicas is None
    assert workload(hpa_class(ome(min_replicas=2), "none")).replicas == 2


LIMITS = [
    (ome(), 1, 3),
    (ome(min_replicas=5), 5, 5),
    (ome(min_replicas=0, max_replicas=7), 0, 7),
    (STANDARD, 1, 1),
    (changed(STANDARD, min_replicas=2), 2, 2),
    (kserve(min_replicas=0), 0, 0),
    (kserve(max_replicas=4), 1, 4),
]


@pytest.mark.parametrize(("service", "least", "most"), LIMITS)
def test_limits_have_the_defaults_of_the_document_s_project(service: Service, least: int, most: int) -> None:
    scaling = workload(service).scaling
    assert (scaling.min_replicas, scaling.max_replicas) == (least, most)


def test_a_router_defaults_to_at_most_2() -> None:
    assert workload(with_component(ome(), "router"), "router").scaling.max_replicas == 2


def test_a_decoder_keeps_one_replica_and_says_so() -> None:
    made = planned(with_component(with_component(ome(), "decoder", min_replicas=0), "router"))
    assert next(work for work in made.workloads if work.role == "decoder").scaling.min_replicas == 1
    assert "PL311" in codes(made.warnings)


def test_a_live_override_is_kept_and_said() -> None:
    current = Current(overrides={"iris-engine": {"minReplicas": 2, "maxReplicas": 9}})
    made = planned(ome(), current=current)
    assert (made.workloads[0].scaling.min_replicas, made.workloads[0].scaling.max_replicas) == (2, 9)
    assert "--reset" in reason(made, "engine: min replicas")[1]


KPA = [
    (ome(min_replicas=0), {"class": "kpa.autoscaling.knative.dev", "min-scale": "0", "max-scale": "3"}),
    (ome(min_replicas=0, scale_target=10), {"metric": "concurrency", "target": "10"}),
    (ome(min_replicas=0, scale_target=10, scale_metric="rps"), {"metric": "rps", "target": "10"}),
    (
        kserve(scale_metric="cpu", scale_target=60),
        {"class": "hpa.autoscaling.knative.dev", "metric": "cpu", "target": "60"},
    ),
    (annotated(kserve(), **{"autoscaling.knative.dev/window": "90s"}), {"window": "90s"}),
    (ome("big", min_replicas=0), {"scale-to-zero-pod-retention-period": "150s"}),
]


@pytest.mark.parametrize(("service", "expected"), KPA)
def test_knative_scales_by_template_annotations(service: Service, expected: dict[str, str]) -> None:
    written = {key.partition("/")[2]: value for key, value in workload(service).scaling.annotations.items()}
    assert expected.items() <= written.items()


def test_an_open_maximum_writes_no_max_scale() -> None:
    assert "autoscaling.knative.dev/max-scale" not in workload(kserve()).scaling.annotations


def utilization(name: str, percent: int) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": name, "target": target}}


def test_an_hpa_watches_cpu_at_80_unless_told_otherwise() -> None:
    assert workload(ome()).scaling.metrics == (utilization("cpu", 80),)
    assert workload(ome(scale_metric="memory", scale_target=60)).scaling.metrics == (utilization("memory", 60),)
    told = annotated(ome(), **{"ome.io/targetUtilizationPercentage": "55"})
    assert workload(told).scaling.metrics == (utilization("cpu", 55),)
    amount = changed(STANDARD, scale_metric="memory", scale_target=512, scale_metric_type="AverageValue")
    assert workload(amount).scaling.metrics[0]["resource"]["target"] == {
        "type": "AverageValue",
        "averageValue": "512Mi",
    }


def test_an_hpa_keeps_the_behaviour_that_is_written() -> None:
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 900, "policies": [{"type": "Pods", "value": 1}]}}
    assert workload(ome(behavior=behavior)).scaling.behavior == behavior


REFUSED = [
    (ome(min_replicas=3, max_replicas=2), "PL310", "spec.engine.maxReplicas"),
    (hpa_class(ome(), "vpa"), "PL312", "metadata.annotations.ome.io/autoscalerClass"),
    (hpa_class(raw(ome(min_replicas=0)), "hpa"), "PL313", "spec.engine.minReplicas"),
    (hpa_class(ome(keda=keda()), "hpa"), "PL313", "metadata.annotations.ome.io/autoscalerClass"),
    (ome(min_replicas=0, scale_metric="cpu"), "PL330", "spec.engine.scaleMetric"),
    (annotated(kserve(), **{f"{KNATIVE}windw": "90s"}), "PL332", f"metadata.annotations.{KNATIVE}windw"),
    (annotated(kserve(), **{f"{KNATIVE}window": "5s"}), "PL333", f"metadata.annotations.{KNATIVE}window"),
    (annotated(kserve(), **{f"{KNATIVE}target": "0"}), "PL333", f"metadata.annotations.{KNATIVE}target"),
]  # fmt: skip


@pytest.mark.parametrize(("service", "code", "path"), REFUSED)
def test_what_no_autoscaler_can_do_is_refused_with_its_place(service: Service, code: str, path: str) -> None:
    assert (code, path) in [(problem.code, problem.path) for problem in refusals(service)]


def test_min_scale_as_an_annotation_is_warned_about_and_left_to_the_field() -> None:
    made = planned(annotated(kserve(min_replicas=2), **{"autoscaling.knative.dev/min-scale": "0"}))
    assert made.workloads[0].scaling.annotations["autoscaling.knative.dev/min-scale"] == "2"
    assert "PL331" in codes(made.warnings)


@pytest.mark.parametrize("version", ["", "2.9", "2.17.1"])
def test_keda_that_cannot_fall_back_on_values_is_refused(version: str) -> None:
    assert codes(refusals(ome(keda=keda()), capabilities=Capabilities(keda=version))) == ["PL314"]


@pytest.mark.parametrize("version", ["2.18", "2.21.0", "v3.0"])
def test_keda_from_2_18_on_is_accepted(version: str) -> None:
    made = planned(ome(keda=keda()), capabilities=Capabilities(keda=version))
    assert "KEDA >= 2.18" in [requirement.name for requirement in made.requirements]


def test_nothing_wakes_a_raw_service_from_zero_without_a_gateway() -> None:
    alone = Capabilities(our_gateway=False)
    refused = refusals(raw(ome(min_replicas=0)), capabilities=alone)
    assert codes(refused) == ["PL320"]
    assert "set minReplicas to 1" in refused[0].message
    assert not refusals(raw(ome(min_replicas=0)), capabilities=Capabilities(our_gateway=False, http_add_on=True))


def test_a_foreign_server_is_scaled_by_the_gateway_or_by_a_query_that_is_given() -> None:
    triggers = workload(ome(runtime_name=FOREIGN, keda=keda())).scaling.triggers
    assert [trigger.type for trigger in triggers] == ["external-push"]
    alone = Capabilities(our_gateway=False)
    assert codes(refusals(ome(runtime_name=FOREIGN, keda=keda()), capabilities=alone)) == ["PL324"]
    given = ome(runtime_name=FOREIGN, keda=keda(query="sum(vllm:num_requests_waiting)", threshold="4"))
    assert not refusals(given, capabilities=alone)


def test_groups_on_ray_have_a_fixed_number_since_nothing_counts_them() -> None:
    service = in_mode(ome(worker=NodeGroup(size=1), min_replicas=2, max_replicas=5, keda=keda()), "MultiNodeRayVLLM")
    made = planned(service)
    work = made.workloads[0]
    assert (work.scaling.scaler, work.replicas) == ("none", 2)
    assert [(warning.code, warning.path) for warning in made.warnings] == [
        ("PL360", "spec.engine.maxReplicas"),
        ("PL360", "spec.engine"),
    ]
