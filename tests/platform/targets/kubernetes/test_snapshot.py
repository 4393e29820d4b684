"""What is read of a cluster to explain why a pod does not serve."""

from tests.platform.targets.kubernetes.fake_cluster import PaperCluster
from tests.platform.targets.kubernetes.objects import deployment, pod

from pilotlight.targets.kubernetes.observe.diagnosis import Evidence, diagnose
from pilotlight.targets.kubernetes.observe.snapshot import take
from pilotlight.targets.kubernetes.observe.status import status_of

LOST = "unable to retrieve container logs for containerd://540587ec"
ENDED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def test_an_init_container_that_fails_is_told_by_its_own_log() -> None:
    """A foreign server's model is fetched by one."""
    waiting = pod("iris-predictor", "iris-predictor-1", container={"state": {"waiting": {"reason": "PodInitializing"}}})
    waiting["status"]["initContainerStatuses"] = [
        {"name": "storage-initializer", "restartCount": 0, "state": {"terminated": {"exitCode": 4, "reason": "Error"}}}
    ]
    with PaperCluster(deployment("iris-predictor", "iris-predictor-1"), waiting) as paper:
        paper.logs = {waiting["metadata"]["name"]: ["s3://models/iris: model.onnx changed; deploy again with -f FILE"]}
        (found,) = take(paper.cluster(), "default").values()
        assert paper.asked[0]["container"] == "storage-initializer"
    reason = status_of(found).revisions[0].reason
    assert reason == (
        "container storage-initializer exited with code 4: s3://models/iris: model.onnx changed;"
        " deploy again with -f FILE"
    )


def test_an_init_container_that_succeeded_in_the_end_is_no_cause() -> None:
    starting = pod("iris-predictor", "iris-predictor-1", container={"state": {"running": {}}})
    starting["status"]["initContainerStatuses"] = [
        {"name": "storage-initializer", "restartCount": 2, "state": {"terminated": {"exitCode": 0}}, "lastState": ENDED}
    ]
    assert diagnose(starting, Evidence()) is None


def test_a_crash_is_told_by_the_run_whose_log_the_node_still_has() -> None:
    crashed = pod("iris-predictor", "iris-predictor-1", container={"restartCount": 1, "state": ENDED})
    name = crashed["metadata"]["name"]
    with PaperCluster(deployment("iris-predictor", "iris-predictor-1"), crashed) as paper:
        paper.logs = {f"{name}/previous": [LOST], name: ["ValueError: no weights"]}
        (found,) = take(paper.cluster(), "default").values()
    assert status_of(found).revisions[0].reason.endswith("exited with code 1: ValueError: no weights")
