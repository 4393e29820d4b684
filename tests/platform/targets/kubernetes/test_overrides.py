"""What `scale` and `traffic` set, decided on paper."""

import pytest
from tests.platform.targets.kubernetes.live_cluster import LIVE, LiveCluster
from tests.platform.targets.kubernetes.objects import deployment, knative, knative_revision, pod

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s import names
from pilotlight.targets.kubernetes.client import MANAGER
from pilotlight.targets.kubernetes.observe.snapshot import Snapshot
from pilotlight.targets.kubernetes.target import (
    KubernetesTarget,
    check_deployed,
    scale_overrides,
    traffic_overrides,
)
from pilotlight.targets.target import Release, Share

KEY = ("default", "iris")
DOCUMENT = "{apiVersion: ome.io/v1beta1, kind: InferenceService, metadata: {name: iris, namespace: default}, spec: {}}"
OLD, NEW = "iris-predictor-old", "iris-predictor-new"


def serverless(overrides: str = "") -> Snapshot:
    service = knative("iris-predictor", NEW)
    if overrides:
        service["metadata"]["annotations"] = {names.ANNOTATION_OVERRIDES: overrides}
    return Snapshot(KEY, (service, knative_revision("iris-predictor", OLD, "True", "False")))


def test_bounds_stand_beside_shares_and_are_said_aloud_on_knative() -> None:
    shares = '{"traffic": [{"revision": "latest", "percent": 100}]}'
    after, told = scale_overrides(serverless(shares), {"minReplicas": 1})
    assert after["iris-predictor"] == {"traffic": [{"revision": "latest", "percent": 100}], "minReplicas": 1}
    assert len(told) == 1


def test_nothing_is_said_where_nothing_changes() -> None:
    assert scale_overrides(serverless(), None) == ({}, [])
    after, told = scale_overrides(serverless('{"minReplicas": 1}'), None)
    assert after == {}
    assert told


def test_a_deployment_restarts_nothing_and_says_nothing() -> None:
    after, told = scale_overrides(Snapshot(KEY, (deployment("iris-predictor", NEW),)), {"maxReplicas": 4})
    assert (after, told) == ({"iris-predictor": {"maxReplicas": 4}}, [])


def test_shares_may_name_a_revision_that_sleeps() -> None:
    after = traffic_overrides(serverless(), [Share(OLD, 40), Share("latest", 60, "new")])
    assert [(each["revision"], each["percent"]) for each in after["iris-predictor"]["traffic"]] == [
        (OLD, 40),
        ("latest", 60),
    ]
    assert traffic_overrides(serverless('{"traffic": [], "minReplicas": 1}'), None) == {
        "iris-predictor": {"minReplicas": 1}
    }


@pytest.mark.parametrize(
    ("shares", "kind", "why"),
    [
        ([Share("nobody", 100)], NotFound, "unknown revision nobody"),
        ([Share(OLD, 40)], UsageError, "add up to 40"),
    ],
)
def test_shares_that_cannot_be_meant_are_refused(shares: list[Share], kind: type[PlatformError], why: str) -> None:
    with pytest.raises(kind, match=why):
        traffic_overrides(serverless(), shares)


def test_one_deployment_has_nothing_to_split() -> None:
    with pytest.raises(UsageError, match="start a canary to split traffic"):
        traffic_overrides(Snapshot(KEY, (deployment("iris-predictor", NEW),)), [Share("latest", 100)])


def test_what_is_left_of_a_delete_is_told_as_that() -> None:
    with pytest.raises(PlatformError, match="was partly deleted"):
        check_deployed(Snapshot(KEY, (pod("iris-predictor", NEW),)))


def test_a_scaled_service_keeps_the_creator_that_knatives_webhook_wrote_to_its_route() -> None:
    service = knative("iris-predictor", NEW)
    route = {
        "apiVersion": "serving.knative.dev/v1", "kind": "Route",
        "metadata": {"name": "iris", "namespace": "default", "labels": service["metadata"]["labels"]},
        "spec": {"traffic": [{"revisionName": NEW, "latestRevision": False, "percent": 100}]},
    }  # fmt: skip
    creator = {"serving.knative.dev/creator": "admin"}
    kinds = (*LIVE, "serving.knative.dev/v1/Service", "serving.knative.dev/v1/Route")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    with LiveCluster(namespace, kinds=kinds) as live:
        target = KubernetesTarget(live.cluster())
        target.apply(Release(*KEY, DOCUMENT, (service, route)))
        live.edit("Route", "iris", {"metadata": {"annotations": creator}}, f"+{MANAGER}")
        target.scale(KEY, {"minReplicas": 2})
        assert live.find("Route", "iris")["metadata"]["annotations"] == creator
