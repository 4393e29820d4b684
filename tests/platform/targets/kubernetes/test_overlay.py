"""What was set by hand, laid over the manifests of a release."""

from typing import Any

import pytest
from tests.platform.targets.kubernetes.objects import deployment, knative, route, scaled_object

from pilotlight.errors import UsageError
from pilotlight.k8s import names
from pilotlight.targets.kubernetes.observe.status import read_overrides
from pilotlight.targets.kubernetes.scale_traffic_overrides import apply_overrides

PLANNED = "iris-predictor-1f3a9c07"


def by_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(each for each in documents if each["kind"] == kind)


def test_bounds_change_the_scaled_object_and_leave_the_pods_alone() -> None:
    before = [deployment("iris-predictor", PLANNED, None), scaled_object("iris-predictor", "prometheus")]
    after = apply_overrides(before, {"iris-predictor": {"minReplicas": 2, "maxReplicas": 6}})
    scaler = by_kind(after, "ScaledObject")["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (2, 6)
    assert by_kind(after, "Deployment")["spec"] == before[0]["spec"]


def test_what_was_set_is_kept_on_the_workloads_object_and_read_back() -> None:
    written = {"iris-predictor": {"maxReplicas": 6}}
    after = apply_overrides(
        [deployment("iris-predictor", PLANNED), scaled_object("iris-predictor", "prometheus")], written
    )
    assert read_overrides(after) == written


def test_a_workload_that_nobody_scales_has_the_count_itself() -> None:
    (after,) = apply_overrides([deployment("iris-predictor", PLANNED, 1)], {"iris-predictor": {"minReplicas": 3}})
    assert after["spec"]["replicas"] == 3


def test_nothing_that_only_watches_what_runs_may_fall_to_zero() -> None:
    with pytest.raises(UsageError, match="no trigger that can wake it"):
        apply_overrides([scaled_object("iris-predictor", "prometheus")], {"iris-predictor": {"minReplicas": 0}})
    woken = apply_overrides([scaled_object("iris-predictor", "external-push")], {"iris-predictor": {"minReplicas": 0}})
    assert woken[0]["spec"]["minReplicaCount"] == 0


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(UsageError, match="min is 9, must be at most max, which is 4"):
        apply_overrides([scaled_object("iris-predictor", "prometheus")], {"iris-predictor": {"minReplicas": 9}})


def test_knative_gets_a_new_revision_for_new_bounds_named_after_the_planned_one() -> None:
    (after,) = apply_overrides([knative("iris-predictor", PLANNED)], {"iris-predictor": {"minReplicas": 1}})
    template, name = after["spec"]["template"], after["spec"]["template"]["metadata"]["name"]
    assert name.startswith(f"{PLANNED}-")
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == "1"
    assert [share["revisionName"] for share in after["spec"]["traffic"]] == [name]
    (again,) = apply_overrides([knative("iris-predictor", PLANNED)], {"iris-predictor": {"minReplicas": 1}})
    assert again["spec"]["template"]["metadata"]["name"] == name


def test_shares_set_by_hand_replace_those_of_the_document() -> None:
    shares = [{"revision": "latest", "percent": 10, "tag": "new"}, {"revision": "iris-predictor-old", "percent": 90}]
    (after,) = apply_overrides([knative("iris-predictor", PLANNED)], {"iris-predictor": {"traffic": shares}})
    assert after["spec"]["traffic"] == [
        {"revisionName": PLANNED, "latestRevision": False, "percent": 10, "tag": "new"},
        {"revisionName": "iris-predictor-old", "latestRevision": False, "percent": 90},
    ]


def test_shares_between_two_deployments_are_weights_of_the_route() -> None:
    sides = [deployment("iris-predictor", "old"), deployment("iris-canary-predictor", "new")]
    split = route("iris", ("iris-predictor", 80), ("iris-canary-predictor", 20))
    shares = [{"revision": "old", "percent": 50}, {"revision": "new", "percent": 50}]
    after = apply_overrides([*sides, split], {"iris-predictor": {"traffic": shares}})
    references = by_kind(after, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert {each["name"]: each["weight"] for each in references} == {"iris-predictor": 50, "iris-canary-predictor": 50}


def test_one_side_alone_has_everything_whatever_was_set_before() -> None:
    alone = route("iris", ("iris-predictor", 100))
    shares = [{"revision": "old", "percent": 90}, {"revision": "gone", "percent": 10}]
    after = apply_overrides([deployment("iris-predictor", "old"), alone], {"iris-predictor": {"traffic": shares}})
    assert by_kind(after, "HTTPRoute")["spec"] == alone["spec"]


def test_the_gateway_is_told_shares_by_the_annotation_that_it_reads() -> None:
    address = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "iris", "annotations": {names.ANNOTATION_SHARES: "iris-predictor=100"}},
        "spec": {},
    }
    shares = [{"revision": "old", "percent": 70}, {"revision": "new", "percent": 30}]
    sides = [deployment("iris-predictor", "old"), deployment("iris-canary-predictor", "new")]
    after = apply_overrides([*sides, address], {"iris-predictor": {"traffic": shares}})
    told = by_kind(after, "Service")["metadata"]["annotations"][names.ANNOTATION_SHARES]
    assert told == "iris-predictor=70,iris-canary-predictor=30"


def test_without_anything_set_by_hand_manifests_stay_as_they_are() -> None:
    documents = [knative("iris-predictor", PLANNED), scaled_object("other", "prometheus")]
    assert apply_overrides(documents, {}) == documents


def test_the_route_of_the_service_itself_follows_the_shares_of_its_knative_service() -> None:
    own = {
        "apiVersion": "serving.knative.dev/v1", "kind": "Route",
        "metadata": {"name": "iris", "labels": {names.LABEL_WORKLOAD: "iris-predictor"}},
        "spec": {"traffic": [{"revisionName": PLANNED, "latestRevision": False, "percent": 100}]},
    }  # fmt: skip
    shares = [{"revision": "iris-predictor-0", "percent": 40}, {"revision": "latest", "percent": 60, "tag": "new"}]
    after = apply_overrides([own, knative("iris-predictor", PLANNED)], {"iris-predictor": {"traffic": shares}})
    assert by_kind(after, "Route")["spec"]["traffic"] == [
        {"revisionName": "iris-predictor-0", "latestRevision": False, "percent": 40},
        {"revisionName": PLANNED, "latestRevision": False, "percent": 60},
    ]
