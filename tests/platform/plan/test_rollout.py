from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    annotated,
    changed,
    codes,
    in_mode,
    kserve,
    ome,
    planned,
    raw,
    refusals,
    with_component,
    workload,
)

from pilotlight.plan.types import Capabilities, Current, Traffic
from pilotlight.spec.service import Component, ModelSpec, NodeGroup, Service

GPU = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

STRATEGIES = [
    (ome(), 0, SURGE),
    (ome(runner=GPU), None, SURGE),
    (ome(runner=GPU), 2, SURGE),
    (ome(runner=GPU), 1, {"type": "Recreate"}),
    (
        ome(runner=GPU, min_replicas=2),
        1,
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    ),
    (ome(runner=GPU, deployment_strategy={"type": "Recreate"}), 8, {"type": "Recreate"}),
]


@pytest.mark.parametrize(("service", "free", "strategy"), STRATEGIES)
def test_a_rollout_takes_no_more_devices_than_there_are(service: Service, free: int | None, strategy: Any) -> None:
    assert workload(service, capabilities=Capabilities(gpus=free)).strategy == strategy


def test_groups_of_nodes_surge_by_whole_groups() -> None:
    service = ome(runner=GPU, worker=NodeGroup(size=1))
    surge = workload(service, capabilities=Capabilities(gpus=4)).strategy["rollingUpdateConfiguration"]
    assert surge == {"maxSurge": 1, "maxUnavailable": 0}
    tight = workload(service, capabilities=Capabilities(gpus=3)).strategy["rollingUpdateConfiguration"]
    assert tight == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_revision_that_finds_no_devices_beside_the_old_one_is_warned_about() -> None:
    made = planned(ome(runner=GPU, min_replicas=0), Capabilities(gpus=1))
    assert "PL352" in codes(made.warnings)


def test_the_same_document_has_the_same_revision_and_another_pod_another() -> None:
    one, same, other = ome(), ome(), ome(runner={"args": ["--x"]})
    assert workload(one).revision == workload(same).revision
    assert workload(one).revision != workload(other).revision
    assert workload(one).revision.startswith("iris-engine-")


def test_what_knative_keeps_in_a_revision_is_in_its_name_and_scaling_of_a_deployment_is_not() -> None:
    base = ome(min_replicas=0)
    for field in ({"max_replicas": 9}, {"container_concurrency": 3}, {"timeout_seconds": 60}):
        assert workload(changed(base, **field)).revision != workload(base).revision, field
    assert workload(ome(max_replicas=9)).revision == workload(ome()).revision


def test_all_traffic_goes_to_the_rendered_revision_when_nothing_else_is_known() -> None:
    made = workload(ome(min_replicas=0, canary_traffic_percent=10))
    assert made.traffic == (Traffic(made.revision, 100),)


def test_a_serverless_canary_names_both_revisions() -> None:
    service = ome(min_replicas=0, canary_traffic_percent=10)
    made = workload(service, current=Current(revisions={"iris-engine": ("iris-engine-00000001",)}))
    assert made.traffic == (Traffic(made.revision, 10), Traffic("iris-engine-00000001", 90, "prev"))
    tagged = annotated(service, **{"ome.io/enable-tag-routing": "true"})
    again = workload(tagged, current=Current(revisions={"iris-engine": ("iris-engine-00000001",)}))
    assert again.traffic[0].tag == "latest"


def test_a_canary_at_100_is_promoted_and_at_0_can_still_be_asked_by_its_tag() -> None:
    current = Current(revisions={"iris-engine": ("old",)})
    assert len(workload(ome(min_replicas=0, canary_traffic_percent=100), current=current).traffic) == 1
    zero = workload(ome(min_replicas=0, canary_traffic_percent=0), current=current).traffic
    assert [(share.percent, share.tag) for share in zero] == [(0, "latest"), (100, "prev")]


def test_the_stable_side_is_the_one_with_most_traffic() -> None:
    current = Current(
        revisions={"iris-engine": ("second", "first")},
        traffic={"iris-engine": (Traffic("second", 10), Traffic("first", 90))},
    )
    made = workload(ome(min_replicas=0, canary_traffic_percent=20), current=current)
    assert [(share.revision, share.percent) for share in made.traffic] == [(made.revision, 20), ("first", 80)]


def test_traffic_set_by_hand_is_kept() -> None:
    shares = [{"revision": "latest", "percent": 30}, {"revision": "old", "percent": 70}]
    current = Current(overrides={"iris-engine": {"traffic": shares}})
    made = workload(ome(min_replicas=0), current=current)
    assert [(share.revision, share.percent) for share in made.traffic] == [(made.revision, 30), ("old", 70)]


def running(template: Any) -> Current:
    return Current(revisions={"iris-engine": ("iris-engine-0ld",)}, templates={"iris-engine-0ld": template})


def test_a_raw_canary_is_two_workloads_that_both_stay_up() -> None:
    template = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "old"}]}}
    service = raw(ome(min_replicas=0, canary_traffic_percent=10))
    stable, canary = planned(service, current=running(template)).workloads
    assert (stable.name, canary.name) == ("iris-engine", "iris-canary-engine")
    assert (stable.revision, stable.template) == ("iris-engine-0ld", template)
    assert [(share.revision, share.percent) for share in stable.traffic] == [
        (canary.revision, 10),
        ("iris-engine-0ld", 90),
    ]
    assert canary.canary
    assert canary.template["metadata"]["labels"]["pilotlight.dev/workload"] == "iris-canary-engine"
    assert stable.scaling.min_replicas == canary.scaling.min_replicas == 1


def test_a_promoted_canary_keeps_its_revision() -> None:
    template = {"metadata": {}, "spec": {"containers": [{"name": "old"}]}}
    _, canary = planned(raw(ome(canary_traffic_percent=10)), current=running(template)).workloads
    (promoted,) = planned(raw(ome()), current=running(template)).workloads
    assert promoted.revision == canary.revision


def test_a_share_set_by_hand_moves_a_raw_canary() -> None:
    template = {"metadata": {}, "spec": {"containers": [{"name": "old"}]}}
    shares = [{"revision": "latest", "percent": 40}, {"revision": "iris-engine-0ld", "percent": 60}]
    current = replace(running(template), overrides={"iris-engine": {"traffic": shares}})
    stable, canary = planned(ome(canary_traffic_percent=10), current=current).workloads
    assert [(share.revision, share.percent) for share in stable.traffic] == [
        (canary.revision, 40),
        ("iris-engine-0ld", 60),
    ]


def test_a_canary_with_nothing_beside_it_keeps_its_own_minimum() -> None:
    assert workload(raw(ome(min_replicas=0, canary_traffic_percent=10))).scaling.min_replicas == 0


def test_a_raw_canary_whose_other_side_is_unknown_is_refused() -> None:
    current = Current(revisions={"iris-engine": ("iris-engine-0ld",)})
    assert codes(refusals(ome(canary_traffic_percent=10), current=current)) == ["PL354"]


def test_a_canary_behind_a_router_is_refused() -> None:
    service = with_component(ome(canary_traffic_percent=10), "router")
    assert "PL357" in codes(refusals(service, current=running({"metadata": {}, "spec": {}})))


def test_kserve_s_written_canaries_scale_by_themselves() -> None:
    side = Component(
        "predictor", model=ModelSpec("onnx", runtime="ours", storage_uri="s3://m/new.onnx"), max_replicas=5
    )
    service = in_mode(kserve(), "Standard")
    service = Service(
        "kserve", "iris", "demo", service.components, annotations=service.annotations,
        canaries=({"name": "blue", "trafficPercent": 20, "component": side, "predictor": {}},),
    )  # fmt: skip
    made = planned(service)
    stable, blue = made.workloads
    told = {decision.topic: decision.value for decision in made.decisions}
    assert told["predictor: traffic"] == f"{stable.revision} 80 %, {blue.revision} 20 %"
    assert told["iris-blue-predictor: revision"] == blue.revision
    assert [decision.topic for decision in made.decisions].count("predictor: revision") == 1
    assert (stable.name, blue.name) == ("iris-predictor", "iris-blue-predictor")
    assert [(share.revision, share.percent) for share in stable.traffic] == [(stable.revision, 80), (blue.revision, 20)]
    assert blue.scaling.max_replicas == 5
    serverless = Service("kserve", "iris", "demo", kserve().components, canaries=service.canaries)
    assert codes(refusals(serverless)) == ["PL358"]


def test_a_budget_for_evictions_has_one_bound() -> None:
    assert workload(ome()).disruption == {"maxUnavailable": 1}
    assert workload(ome(min_available="50%")).disruption == {"minAvailable": "50%"}
    assert workload(ome(max_unavailable=0)).disruption == {"maxUnavailable": 0}
    assert codes(refusals(ome(min_available=1, max_unavailable=1))) == ["PL356"]
    assert workload(ome(min_replicas=0)).disruption == {}
