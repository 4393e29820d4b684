"""What a person is told about a service on a cluster."""

from typing import Any

import pytest
from tests.platform.targets.kubernetes.objects import deployment, knative, knative_revision, pod, route, scaled_object

from pilotlight.contract import ENV_MODEL_PATH
from pilotlight.k8s import names
from pilotlight.targets.kubernetes.observe.diagnosis import PUSH_IMAGE, Evidence
from pilotlight.targets.kubernetes.observe.snapshot import Snapshot
from pilotlight.targets.kubernetes.observe.status import status_of
from pilotlight.targets.target import ServiceStatus

OLD, NEW = "iris-predictor-old", "iris-predictor-new"
READY = [{"type": "Ready", "status": "True"}]
URL = "http://iris-predictor.default.example.com"
MODEL = "s3://models/iris"
PULL = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}


def told(*objects: dict[str, Any], evidence: dict[str, Evidence] | None = None) -> ServiceStatus:
    return status_of(Snapshot(("default", "iris"), objects, evidence=evidence or {}))


def routed(revision: str, *shares: tuple[str, int], ready: bool = True) -> dict[str, Any]:
    traffic = [{"revisionName": name, "percent": percent} for name, percent in shares]
    status = {"url": URL, "traffic": traffic, "conditions": READY if ready else [{"type": "Ready", "status": "False"}]}
    return knative("iris-predictor", revision, traffic, status)


def test_a_service_that_answers_is_ready_with_its_address() -> None:
    status = told(
        routed(NEW, (NEW, 100)),
        knative_revision("iris-predictor", NEW, "True"),
        pod("iris-predictor", NEW, ready=True, serverless=True),
    )
    assert (status.phase, status.url, status.mode) == ("Ready", URL, "serverless")
    (row,) = status.revisions
    assert (row.name, row.percent, row.ready, row.model_state) == (NEW, 100, 1, "Loaded")


@pytest.mark.parametrize(("ready", "url"), [("True", "http://iris.demo.example.com"), ("False", URL)])
def test_the_address_is_the_mapped_host_once_knative_serves_it(ready: str, url: str) -> None:
    mapping = {
        "apiVersion": "serving.knative.dev/v1beta1",
        "kind": "DomainMapping",
        "metadata": {"name": "iris.demo.example.com", "namespace": "default"},
        "status": {"url": "http://iris.demo.example.com", "conditions": [{"type": "Ready", "status": ready}]},
    }
    status = told(
        routed(NEW, (NEW, 100)),
        knative_revision("iris-predictor", NEW, "True"),
        pod("iris-predictor", NEW, ready=True, serverless=True),
        mapping,
    )
    assert (status.phase, status.url) == ("Ready", url)


@pytest.mark.parametrize(("ready", "name"), [("True", "iris"), ("False", "iris-predictor")])
def test_the_addresses_are_those_of_the_services_own_name_once_knative_serves_it(ready: str, name: str) -> None:
    service = routed(NEW, (NEW, 100))
    service["status"]["address"] = {"url": "http://iris-predictor.default.svc.cluster.local"}
    own = {
        "apiVersion": "serving.knative.dev/v1", "kind": "Route", "metadata": {"name": "iris", "namespace": "default"},
        "status": {
            "url": "http://iris.default.example.com",
            "address": {"url": "http://iris.default.svc.cluster.local"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }  # fmt: skip
    status = told(service, knative_revision("iris-predictor", NEW, "True", "False"), own)
    assert status.urls["cluster"] == f"http://{name}.default.svc.cluster.local"
    assert status.url == (URL if ready == "False" else "http://iris.default.example.com")
    assert status.component_urls == {"iris-predictor": URL}, "the host of the component"


@pytest.mark.parametrize(("pins", "unpinned"), [("", (MODEL,)), (f'{{"{MODEL}": {{"digest": "etags:1"}}}}', ())])
def test_models_that_are_fetched_without_a_pin_are_told(pins: str, unpinned: tuple[str, ...]) -> None:
    revision = knative_revision("iris-predictor", NEW, "True", "False")
    revision["metadata"]["annotations"] = {names.ANNOTATION_PINS: pins}
    revision["spec"] = {"containers": [{"name": "main", "env": [{"name": ENV_MODEL_PATH, "value": MODEL}]}]}
    (row,) = told(routed(NEW, (NEW, 100)), revision).revisions
    assert row.unpinned == unpinned
    fetch = {
        "name": "storage-initializer",
        "command": ["python", "-m", "pilotlight_predictor", "fetch", MODEL, "/m"],
    }
    revision["spec"] = {"initContainers": [fetch], "containers": [{"name": "main"}]}
    assert told(routed(NEW, (NEW, 100)), revision).revisions[0].unpinned == unpinned


def test_our_image_in_no_registry_is_told_with_what_to_do() -> None:
    message = 'Unable to fetch image "pilotlight/predictor:0.1.0": failed to resolve image to digest: 401 Unauthorized'
    ready = {"type": "Ready", "status": "False", "reason": "ContainerMissing", "message": message}
    revision = knative_revision("iris-predictor", NEW, "False", conditions=[ready])
    (row,) = told(routed(NEW, (NEW, 100)), revision).revisions
    assert (row.model_state, row.reason) == ("FailedToLoad", f"{message}; {PUSH_IMAGE}")
    assert "--image-registry" in row.reason


def test_at_zero_it_stands_by() -> None:
    status = told(routed(NEW, (NEW, 100)), knative_revision("iris-predictor", NEW, "True", "False"))
    assert status.phase == "Standby"
    assert status.revisions[0].model_state == "Standby"
    ready = next(each for each in status.conditions if each.type == "Ready")
    assert ready.status == "True"


def test_a_revision_that_cannot_start_is_told_while_the_one_before_it_serves() -> None:
    status = told(
        routed(NEW, (OLD, 100), ready=False),
        knative_revision("iris-predictor", OLD, "True"),
        knative_revision("iris-predictor", NEW, "Unknown"),
        pod("iris-predictor", OLD, ready=True, serverless=True),
        pod("iris-predictor", NEW, serverless=True, container=PULL),
    )
    assert status.phase == "Degraded"
    reason = f"image pilotlight/predictor:0.1.0 cannot be pulled: not found; {PUSH_IMAGE}"
    assert status.message == f"{NEW}: {reason}; {OLD} keeps serving"
    assert [row.name for row in status.revisions] == [NEW, OLD]


def test_one_that_never_served_has_failed() -> None:
    status = told(
        routed(NEW, ready=False),
        knative_revision("iris-predictor", NEW, "Unknown"),
        pod("iris-predictor", NEW, serverless=True, container=PULL),
    )
    assert status.phase == "Failed"


def test_a_revision_that_was_ready_and_whose_next_pod_cannot_start_has_failed() -> None:
    """Knative leaves its condition Ready as it was."""
    failing = pod("iris-predictor", NEW, serverless=True, container={"state": {"running": {}}})
    line = '{"level": "ERROR", "event": "failed", "message": "model.onnx changed; deploy again"}'
    status = told(
        routed(NEW, (NEW, 100)), knative_revision("iris-predictor", NEW, "True", "True"), failing,
        evidence={failing["metadata"]["name"]: Evidence(logs=[line])},
    )  # fmt: skip
    assert status.revisions[0].model_state == "FailedToLoad"
    assert (status.phase, status.message) == ("Failed", f"{NEW}: model.onnx changed; deploy again")


def test_it_is_not_ready_before_knative_says_that_requests_reach_it() -> None:
    status = told(
        routed(NEW, (NEW, 100), ready=False),
        knative_revision("iris-predictor", NEW, "True"),
        pod("iris-predictor", NEW, ready=True, serverless=True),
    )
    assert status.phase == "Progressing"


def test_a_rolling_update_shows_both_revisions_and_is_under_way_until_the_old_one_has_gone() -> None:
    work = deployment("iris-predictor", NEW, 2, updatedReplicas=1)
    pods = [pod("iris-predictor", NEW, ready=True), pod("iris-predictor", OLD, ready=True)]
    status = told(work, *pods)
    assert status.phase == "Progressing"
    assert {row.name: row.percent for row in status.revisions} == {NEW: 50, OLD: 50}
    assert told(deployment("iris-predictor", NEW, 1), pods[0]).phase == "Ready"


def of_group(rank: str, ready: bool) -> dict[str, Any]:
    made = pod("iris-predictor", NEW, ready=ready, name=f"iris-predictor-0-{rank}")
    made["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] = rank
    return made


def test_a_group_is_one_replica_and_as_ready_as_its_leader() -> None:
    group = deployment("iris-predictor", NEW) | {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    group["spec"]["leaderWorkerTemplate"] = {"leaderTemplate": group["spec"].pop("template")}
    starting = told(group, of_group("0", False), of_group("1", True))
    assert (starting.phase, starting.revisions[0].ready, starting.revisions[0].starting) == ("Progressing", 0, 1)
    answering = told(group, of_group("0", True), of_group("1", True))
    assert (answering.phase, answering.revisions[0].ready, answering.revisions[0].starting) == ("Ready", 1, 0)


def test_a_deployment_at_zero_stands_by() -> None:
    assert told(deployment("iris-predictor", NEW, 0), scaled_object("iris-predictor", least=0)).phase == "Standby"


def test_both_sides_of_a_raw_canary_have_the_weights_of_the_route() -> None:
    status = told(
        deployment("iris-predictor", OLD),
        deployment("iris-canary-predictor", NEW),
        route("iris", ("iris-predictor", 80), ("iris-canary-predictor", 20)),
        pod("iris-predictor", OLD, ready=True),
        pod("iris-canary-predictor", NEW, ready=True),
    )
    assert {row.name: row.percent for row in status.revisions} == {OLD: 80, NEW: 20}
    assert status.url == "http://iris-default.example.com"


def test_pods_that_the_cluster_refuses_are_the_cause() -> None:
    message = 'pods "iris-predictor-7f" is forbidden: exceeded quota: small'
    conditions = [{"type": "ReplicaFailure", "status": "True", "message": message}]
    status = told(deployment("iris-predictor", NEW, 1, conditions=conditions))
    assert (status.phase, status.message) == (
        "Failed",
        f"{NEW}: its pods cannot be created: exceeded quota: small",
    )


def test_a_route_that_is_not_taken_keeps_it_from_being_ready() -> None:
    lost = route("iris", ("iris-predictor", 100))
    refused = [{"type": "Accepted", "status": "False", "message": "no listener for the host"}]
    lost["status"] = {"parents": [{"conditions": refused}]}
    status = told(deployment("iris-predictor", NEW), lost, pod("iris-predictor", NEW, ready=True))
    assert (status.phase, status.message) == ("Progressing", "its route is not accepted: no listener for the host")


def test_keda_that_holds_the_replicas_is_said() -> None:
    held = scaled_object("iris-predictor")
    held["status"] = {"conditions": [{"type": "Fallback", "status": "True"}]}
    status = told(deployment("iris-predictor", NEW), held, pod("iris-predictor", NEW, ready=True))
    assert any("holds the replicas" in sentence for sentence in status.warnings)


def test_what_is_being_deleted_says_how_many_pods_are_left() -> None:
    ending = pod("iris-predictor", NEW, ready=True)
    ending["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    status = told(ending)
    assert (status.phase, status.message) == ("Stopping", "1 pods are draining")


def test_both_sides_of_a_canary_are_one_component() -> None:
    status = told(
        deployment("iris-predictor", OLD),
        deployment("iris-canary-predictor", NEW),
        pod("iris-predictor", OLD, ready=True),
    )
    assert [each.type for each in status.conditions].count("PredictorReady") == 1


def test_an_annotation_that_somebody_has_spoilt_spoils_no_status() -> None:
    spoilt = deployment("iris-predictor", NEW)
    spoilt["metadata"]["annotations"] = {"pilotlight.dev/overrides": "{"}
    address = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "iris", "namespace": "default"}, "spec": {}}
    address["metadata"]["annotations"] = {"pilotlight.dev/shares": "iris-predictor=many=10,x"}  # type: ignore[index]
    status = told(spoilt, address, pod("iris-predictor", NEW, ready=True))
    assert (status.phase, status.overrides) == ("Ready", {})
