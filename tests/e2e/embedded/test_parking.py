"""A service that parks instead of ending: the process stays, the model leaves, and the next request brings it back."""

from pathlib import Path

from tests.e2e.embedded.fake_gpu import write_nvml
from tests.e2e.embedded.models import python_service, write_model
from tests.embedded import Platform

PARKS = """
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


class Model:
    def initialize(self, args):
        self.weights = 2.0

    def execute(self, inputs):
        return {"y": inputs["x"] * self.weights}

    def park(self):
        del self.weights

    def wake(self):
        self.weights = 2.0
"""
PARK = '    pilotlight.dev/park: "true"\n    autoscaling.knative.dev/window: '
TO_ZERO = "    minReplicas: 0\n    maxReplicas: 2"
GPU = "      resources: {limits: {nvidia.com/gpu: 1}}"
ASKED = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [4]}]}


def deploy(platform: Platform, uri: str, name: str, window: str) -> None:
    platform.deploy(python_service(uri, name=name, annotations=PARK + window, predictor=TO_ZERO, model=GPU))


def test_two_services_share_one_gpu_parked_in_turn_through_a_restart_of_the_platform(tmp_path: Path) -> None:
    """The machine's NVML is the test's own. Only the first service would park by itself within the test."""
    env = write_nvml(tmp_path / "nvml")
    uri = write_model(tmp_path / "model", PARKS)
    with Platform(tmp_path / "home", env) as platform:
        deploy(platform, uri, "first", "6s")
        platform.wait_phase("Ready", name="first")
        deploy(platform, uri, "second", "1h")
        platform.wait_phase("Ready", name="second")
        parked = platform.wait_phase("Parked", name="first")
        assert (parked.revisions[0].model_state, parked.revisions[0].ready) == ("Parked", 0)
        assert next(each.status for each in parked.conditions if each.type == "Ready") == "True"
        processes = set(platform.replicas())
        assert len(processes) == 2

        platform.kill_control()
        platform.wait(platform.answers, "the control process to be back")
        assert platform.wait_phase("Parked", name="first").revisions[0].desired == 0
        platform.wait_phase("Ready", name="second")

        reply = platform.ask("/first/v2/models/first/infer", ASKED)
        assert reply.json()["outputs"][0]["data"] == [8]
        gave_way = platform.wait_phase("Parked", name="second")
        assert gave_way.revisions[0].decision.startswith("0: preempted, default/first needs GPU 0, idle for ")
        assert set(platform.replicas()) == processes

        platform.target.delete(("default", "second"))
        platform.wait(lambda: len(platform.replicas()) == 1, "the deleted service's process to end")
