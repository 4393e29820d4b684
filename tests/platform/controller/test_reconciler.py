"""Reconciliation of one InferenceService over a cluster that takes writes, without the watches of the operator."""

import time
from collections.abc import Iterator

import pytest
from tests.platform.controller.documents import IRIS, KEY, KIND, Json, annotated, iris
from tests.platform.targets.kubernetes.fake_cluster import KNATIVE
from tests.platform.targets.kubernetes.live_cluster import LIVE, LiveCluster

from pilotlight.canaries import observation, stored_history
from pilotlight.canaries.actions import RollBack
from pilotlight.canaries.probes import Deadline
from pilotlight.canaries.runner import CanaryRunner, execute
from pilotlight.controller.object_cache import WATCHED, CachedCluster, ObjectCache
from pilotlight.controller.reconciler import Reconciler
from pilotlight.controller.settings import ControllerSettings
from pilotlight.targets.kubernetes.client import KubeConnection, KubeResponse

SERVICES = [KIND, ("ome.io/v1beta1", "InferenceService")]
SETTINGS = ControllerSettings(tuple(version for version, _ in SERVICES))


class Died(BaseException):
    """The controller's process ends here."""


class MortalCluster(CachedCluster):
    """Ends the process before one of its writes."""

    writes_left = 10**6

    def _count(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise Died

    def apply(self, document: Json, *, force: bool = False, dry_run: bool = False) -> KubeResponse:
        if not dry_run:
            self._count()
        return super().apply(document, force=force, dry_run=dry_run)

    def create(self, document: Json) -> KubeResponse:
        self._count()
        return super().create(document)

    def merge(self, document: Json, change: Json, subresource: str = "") -> KubeResponse:
        self._count()
        return super().merge(document, change, subresource)

    def delete(self, document: Json) -> None:
        self._count()
        super().delete(document)


class Process:
    """A controller over a cluster; `passes` reads everything anew and reconciles."""

    def __init__(self, live: LiveCluster, writes: int = 10**6) -> None:
        self.live = live
        connection = KubeConnection(live.api, sleep=lambda _: None)
        self.cluster = MortalCluster(connection, ObjectCache(), [*WATCHED, *SERVICES])
        self.cluster.writes_left = writes
        self.reconciler = Reconciler(self.cluster, SETTINGS)

    def passes(self, count: int = 1) -> float:
        pause = 0.0
        for _ in range(count):
            self.cluster.fill(())
            pause = self.reconciler.reconcile(KIND, KEY)
        return pause


@pytest.fixture
def live() -> Iterator[LiveCluster]:
    with LiveCluster({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}, IRIS) as cluster:
        yield cluster


def ready(live: LiveCluster) -> Json:
    return live.find("InferenceService", "iris")["status"]["conditions"][0]


def reasons(live: LiveCluster) -> list[str]:
    return [each["reason"] for each in live.objects if each["kind"] == "Event"]


def writes(live: LiveCluster) -> list[tuple[str, str, str]]:
    return [each for each in live.calls if each[0] != "GET"]


def put(live: LiveCluster, document: Json) -> None:
    """Apply a document as kubectl does."""
    changes = {name: {**IRIS["metadata"], **value} if name == "metadata" else value for name, value in document.items()}
    live.edit("InferenceService", "iris", changes, "kubectl-client-side-apply")


def test_a_document_becomes_a_release_and_its_objects(live: LiveCluster) -> None:
    Process(live).passes(2)
    assert live.find("Deployment", "iris-predictor")
    release = live.find("ControllerRevision", "iris-release-1")
    assert release["data"]["note"] == "kubectl apply"
    assert release["metadata"]["annotations"]["pilotlight.dev/complete"] == "true"
    status = live.find("InferenceService", "iris")["status"]
    assert status["observedGeneration"] == 1
    assert ready(live)["reason"] == "Progressing"
    assert reasons(live) == ["Created"]


def test_a_status_loses_only_what_the_crd_of_others_does_not_declare(live: LiveCluster) -> None:
    live.undeclared = frozenset({"replicas", "selector"})
    Process(live).passes(2)
    assert ready(live)["reason"] == "Progressing"


def test_the_document_itself_is_not_changed(live: LiveCluster) -> None:
    Process(live).passes(2)
    document = live.find("InferenceService", "iris")
    assert document["spec"] == IRIS["spec"]
    assert document["metadata"]["generation"] == 1
    assert "annotations" not in document["metadata"]
    assert "labels" not in document["metadata"]


def test_an_unchanged_service_costs_no_request(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(2)
    live.edit("Deployment", "iris-predictor", {"spec": {"replicas": 0}})  # as a scaler does; nothing is not ready then
    live.edit("Deployment", "iris-predictor", {"spec": {"replicas": None}})
    process.passes(1)
    live.calls.clear()
    process.reconciler.reconcile(KIND, KEY)
    assert live.calls == []


def test_a_new_service_costs_few_requests(live: LiveCluster) -> None:
    Process(live).passes(1)
    objects = len(live.find("ControllerRevision", "iris-release-1")["data"]["manifests"])
    # Each object: is it somebody's, dry run, apply. Beside them: release and its mark, status, events.
    assert len(writes(live)) <= 2 * objects + 6


def test_an_edit_makes_the_next_release(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    put(live, iris(maxReplicas=5))
    process.passes(1)
    assert live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 5
    assert live.find("ControllerRevision", "iris-release-2")
    assert live.find("InferenceService", "iris")["status"]["observedGeneration"] == 2
    assert reasons(live) == ["Created", "Updated"]


def test_a_change_by_hand_is_taken_back(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    live.edit("HorizontalPodAutoscaler", "iris-predictor", {"spec": {"maxReplicas": 9}})
    live.remove("Service", "iris")
    process.passes(1)
    assert live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 3
    assert live.find("Service", "iris")
    event = next(each for each in live.objects if each["kind"] == "Event" and each["reason"] == "DriftRepaired")
    assert "HorizontalPodAutoscaler iris-predictor was changed" in event["message"]
    assert "Service iris was missing" in event["message"]
    assert not live.find("ControllerRevision", "iris-release-2")


def test_a_conflict_with_another_tool_names_it_and_nothing_is_taken(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    live.edit("HorizontalPodAutoscaler", "iris-predictor", {"spec": {"maxReplicas": 9}}, "argocd-controller")
    pause = process.passes(1)
    assert live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 9
    assert ready(live)["reason"] == "FieldConflict"
    assert "set by argocd-controller; the manifest has 3" in ready(live)["message"]
    assert 0.5 < pause < 2
    assert process.passes(1) > pause  # backs off


def test_an_invalid_document_is_reported_where_validate_would_and_the_old_one_serves(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    put(live, iris(minReplicas="many"))
    pause = process.passes(1)
    assert ready(live)["reason"] == "InvalidSpec"
    assert ready(live)["message"].startswith("InferenceService models/iris: error PL102: spec.predictor.minReplicas:")
    status = live.find("InferenceService", "iris")["status"]
    assert status["modelStatus"]["transitionStatus"] == "InvalidSpec"
    assert status["observedGeneration"] == 2
    assert live.find("Deployment", "iris-predictor")
    assert pause == SETTINGS.resync_s
    put(live, iris())
    process.passes(1)
    assert ready(live)["reason"] == "Progressing"
    assert not live.find("ControllerRevision", "iris-release-2")


def test_an_example_does_not_read_files_of_the_controller(live: LiveCluster) -> None:
    put(live, iris(model={**IRIS["spec"]["predictor"]["model"], "example": "/etc/hostname"}))
    Process(live).passes(1)
    assert ready(live)["reason"] == "InvalidSpec"
    assert "has no files next to it" in ready(live)["message"]


def test_a_paused_service_is_left_alone(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    put(live, annotated(iris(maxReplicas=5), paused="true"))
    live.remove("Service", "iris")
    process.passes(1)
    assert ready(live)["reason"] == "Paused"
    assert live.find("Service", "iris") is None
    assert live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 3


def test_a_document_that_changed_since_is_not_applied(live: LiveCluster) -> None:
    """A deploy of the command line writes the document and then its release, which the watch may bring first."""
    process = Process(live)
    process.passes(1)
    put(live, iris(maxReplicas=5))
    process.cluster.fill(())
    put(live, iris(maxReplicas=6))
    process.reconciler.reconcile(KIND, KEY)
    assert not live.find("ControllerRevision", "iris-release-2")
    process.passes(1)
    assert live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 6


def test_marks_of_gitops_tools_stay_on_the_document(live: LiveCluster) -> None:
    labels = {"app.kubernetes.io/instance": "shop", "kustomize.toolkit.fluxcd.io/name": "shop", "team": "vision"}
    annotations = {"argocd.argoproj.io/tracking-id": "shop:serving.kserve.io/InferenceService:models/iris"}
    live.edit("InferenceService", "iris", {"metadata": {"labels": labels, "annotations": annotations}})
    Process(live).passes(1)
    workload = live.find("Deployment", "iris-predictor")
    assert workload["metadata"]["labels"]["team"] == "vision"
    assert "shop" not in str({**workload, "metadata": {**workload["metadata"], "managedFields": []}})
    assert "shop" not in live.find("ControllerRevision", "iris-release-1")["data"]["document"]


def test_nothing_is_applied_before_the_finalizer_is_there(live: LiveCluster) -> None:
    live.edit("InferenceService", "iris", {"metadata": {"finalizers": None}})
    Process(live).passes(1)
    assert live.find("Deployment", "iris-predictor") is None


def test_a_service_of_the_other_group_keeps_its_name(live: LiveCluster) -> None:
    other = {
        **iris(), "apiVersion": "ome.io/v1beta1",
        "spec": {"predictor": {"minReplicas": 1, "maxReplicas": 2, "model": IRIS["spec"]["predictor"]["model"]}},
    }  # fmt: skip
    process = Process(live)
    process.passes(1)
    live._store(other, "ADDED")
    process.cluster.fill(())
    process.reconciler.reconcile(SERVICES[1], KEY)
    process.reconciler.delete(SERVICES[1], KEY)
    assert live.find("Deployment", "iris-predictor")
    status = next(each for each in live.objects if each["apiVersion"] == "ome.io/v1beta1")["status"]
    assert status["conditions"][0]["message"] == (
        "the service models/iris belongs to another object, the InferenceService of serving.kserve.io/v1beta1 "
        "(rename or delete one of the two)"
    )


def test_nothing_is_remembered_of_a_service_that_is_deleted(live: LiveCluster) -> None:
    process = Process(live)
    process.passes(1)
    live._store({**iris(), "apiVersion": "ome.io/v1beta1"}, "ADDED")
    process.cluster.fill(())
    pauses = [process.reconciler.reconcile(SERVICES[1], KEY) for _ in range(4)]
    assert pauses[3] > 4 * pauses[0]
    process.reconciler.delete(SERVICES[1], KEY)
    assert process.reconciler.reconcile(SERVICES[1], KEY) < 2
    process.reconciler.delete(SERVICES[1], KEY)
    remembered = (process.reconciler._locks, process.reconciler._failures, process.reconciler._unrepaired)
    assert [len(each) for each in remembered] == [0, 0, 0]


def test_a_document_with_a_canary_is_tried_once_beside_the_one_that_serves() -> None:
    serverless = {name: value for name, value in IRIS["spec"]["predictor"].items() if not name.startswith("scale")}
    document = {**iris(), "spec": {"predictor": serverless}}
    with LiveCluster(document, kinds=(*LIVE, *KNATIVE)) as live:
        process = Process(live)
        process.passes(1)
        newer = {**serverless, "timeout": 120}
        live.edit("InferenceService", "iris", {"spec": {"predictor": newer, "canary": {"steps": "10,100"}}})
        process.passes(1)
        record = stored_history.decode_history(process.reconciler.target.canary(KEY)).current
        assert record is not None
        assert record.policy.steps == (10, 100)
        assert (record.stable_generation, record.generation) == (1, 2)
        assert live.find("ControllerRevision", "iris-release-2")["data"]["note"] == "canary 0 %"
        process.passes(2)
        assert not live.find("ControllerRevision", "iris-release-3")
        assert live.find("InferenceService", "iris")["spec"]["canary"] == {"steps": "10,100"}

        target = process.reconciler.target
        state = observation.observe(target, KEY, record)
        execute(target, state, RollBack("too slow"), Deadline.of_round(time.monotonic))
        process.passes(2)
        assert not live.find("ControllerRevision", "iris-release-4"), "its runner has not ended the canary yet"
        CanaryRunner(target).tick(KEY)
        process.passes(2)
        assert live.find("ControllerRevision", "iris-release-3")["data"]["note"].startswith("canary rolled back")
        assert not live.find("ControllerRevision", "iris-release-4"), "the document is not tried again"
        ready = live.find("InferenceService", "iris")["status"]["conditions"][0]
        assert (ready["type"], ready["reason"]) == ("Ready", "CanaryRolledBack")


def content(live: LiveCluster) -> list[Json]:
    """All objects of the service, without what differs from run to run."""
    skipped = ("Event", "InferenceService", "Namespace")
    objects = [each for each in live.objects if each["kind"] not in skipped]
    shown = [
        {**each, "metadata": each["metadata"]["name"], "data": {**(each.get("data") or {}), "at": ""}}
        for each in objects
    ]
    return sorted(shown, key=lambda each: (each["kind"], each["metadata"]))


@pytest.mark.parametrize("writes_before", range(11))
def test_a_crash_in_an_apply_is_made_up_for(live: LiveCluster, writes_before: int) -> None:
    protected = annotated(IRIS, **{"auth-tokens-sha256": "a" * 64})  # its rules are a Secret, which no release has
    put(live, protected)
    with pytest.raises(Died):
        Process(live, writes_before).passes(1)
    Process(live).passes(1)
    assert live.find("ControllerRevision", "iris-release-1")["metadata"]["annotations"]["pilotlight.dev/complete"]
    assert not live.find("ControllerRevision", "iris-release-2")
    crashed = content(live)
    assert live.find("Secret", "iris-access")
    with LiveCluster(protected) as whole:
        Process(whole).passes(1)
        assert crashed == content(whole)


@pytest.mark.parametrize("writes_before", range(8))
def test_a_crash_in_a_delete_is_made_up_for(live: LiveCluster, writes_before: int) -> None:
    Process(live).passes(1)
    live.remove("InferenceService", "iris")
    process = Process(live, writes_before)
    process.cluster.fill(())
    with pytest.raises(Died):
        process.reconciler.delete(KIND, KEY)
    process = Process(live)
    process.cluster.fill(())
    process.reconciler.delete(KIND, KEY)
    assert content(live) == []
