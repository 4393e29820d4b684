"""What is read of a cluster to explain why a pod does not serve."""

from tests.platform.targets.kubernetes.fake_cluster import PaperCluster
from tests.platform.targets.kubernetes.objects import deployment, pod

from pilotlight.targets.kubernetes.observe.snapshot import take
from pilotlight.targets.kubernetes.observe.status import status_of

LOST = "unable to retrieve container logs for containerd://540587ec"
ENDED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def test_a_crash_is_told_by_the_run_whose_log_the_node_still_has() -> None:
    crashed = pod("iris-predictor", "iris-predictor-1", container={"restartCount": 1, "state": ENDED})
    name = crashed["metadata"]["name"]
    with PaperCluster(deployment("iris-predictor", "iris-predictor-1"), crashed) as paper:
        paper.logs = {f"{name}/previous": [LOST], name: ["ValueError: no weights"]}
        (found,) = take(paper.cluster(), "default").values()
    assert status_of(found).revisions[0].reason.endswith("ended with exit code 1: ValueError: no weights")
