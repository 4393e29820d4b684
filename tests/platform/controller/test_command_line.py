"""`platformctl` and the controller on one service: both write the same, the document first."""

import io
from datetime import UTC, datetime

import pytest
from msgspec import json
from tests.platform.controller.documents import KEY, KIND, Json, iris, lease
from tests.platform.controller.test_reconciler import Process, live  # noqa: F401 - a fixture
from tests.platform.targets.kubernetes.live_cluster import LiveCluster

from pilotlight.errors import UsageError
from pilotlight.release.apply import PreparedRelease, ReleaseRequest, prepare
from pilotlight.release.history import with_canary_percent
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.targets.kubernetes.apply import FieldConflict
from pilotlight.targets.kubernetes.target import KubernetesTarget


class CommandLine:
    """What `platformctl deploy` does, without its output."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.target = KubernetesTarget(process.live.cluster())

    def prepared(self, document: Json, judged: bool = False) -> PreparedRelease:
        text = json.encode({**document, "metadata": {"name": "iris", "namespace": "models"}}).decode()
        documents = read(Sources(("-",), stdin=io.StringIO(text)))
        documents = with_canary_percent(documents, 0, judged=True) if judged else documents
        (one,), _ = prepare(ReleaseRequest(documents, self.process.reconciler.discovered()), self.target)
        return one

    def deploy(self, document: Json, judged: bool = False) -> None:
        self.target.apply(self.prepared(document, judged).release)


@pytest.fixture
def process(live: LiveCluster) -> Process:  # noqa: F811
    running = Process(live)
    running.passes(1)
    return running


def test_a_deploy_writes_the_document_and_the_controller_agrees(process: Process) -> None:
    CommandLine(process).deploy(iris(maxReplicas=6))
    document = process.live.find("InferenceService", "iris")
    assert document["spec"]["predictor"]["maxReplicas"] == 6
    assert process.live.find("ControllerRevision", "iris-release-2")["data"]["note"] == "deploy"
    process.passes(2)
    assert not process.live.find("ControllerRevision", "iris-release-3")
    assert process.live.find("InferenceService", "iris")["status"]["observedGeneration"] == 2


def test_the_status_stays_the_controllers(process: Process) -> None:
    command_line = CommandLine(process)
    command_line.deploy(iris(maxReplicas=6))
    command_line.target.record_status(command_line.target.status(KEY))
    assert process.live.find("InferenceService", "iris")["status"]["observedGeneration"] == 1


def test_a_field_of_git_is_changed_there_and_nothing_is_applied(process: Process) -> None:
    process.live.edit("InferenceService", "iris", {"spec": {"predictor": {"maxReplicas": 3}}}, "argocd-controller")
    with pytest.raises(FieldConflict, match="maxReplicas: set by argocd-controller; the manifest has 6"):
        CommandLine(process).deploy(iris(maxReplicas=6))
    assert not process.live.find("ControllerRevision", "iris-release-2")


def test_canaries_are_the_controllers(process: Process) -> None:
    with pytest.raises(UsageError, match="runs the canaries of models/iris"):
        CommandLine(process).deploy(iris(timeout=120), judged=True)


def test_a_delete_is_left_to_the_controller(process: Process) -> None:
    process.live._store(lease(datetime.now(UTC)), "ADDED")
    assert not CommandLine(process).target.delete(KEY)
    assert "deletionTimestamp" in process.live.find("InferenceService", "iris")["metadata"]
    assert process.live.find("Deployment", "iris-predictor")
    process.cluster.fill(())
    process.reconciler.delete(KIND, KEY)
    assert process.live.find("Deployment", "iris-predictor") is None


@pytest.mark.parametrize("kubectl", [False, True])
def test_a_delete_without_a_controller_leaves_nothing_behind(process: Process, kubectl: bool) -> None:
    process.live._store(lease(datetime(2026, 1, 15, tzinfo=UTC)), "ADDED")
    if kubectl:
        process.live.remove("InferenceService", "iris")
        assert "deletionTimestamp" in process.live.find("InferenceService", "iris")["metadata"], (
            "its finalizer holds it"
        )
    note = CommandLine(process).target.delete(KEY)
    assert note == "models/iris: no controller runs; the finalizer of its InferenceService was removed"
    for kind, name in (("InferenceService", "iris"), ("Deployment", "iris-predictor")):
        assert process.live.find(kind, name) is None


def test_who_may_not_read_inference_services_deploys_as_without_a_controller(process: Process) -> None:
    process.live.forbidden = frozenset({"inferenceservices"})
    CommandLine(process).deploy(iris(maxReplicas=6))
    assert process.live.find("ControllerRevision", "iris-release-2")
