"""What `status` says of a service is true: its figures under a known load, the states of its model, its conditions."""

import time
from pathlib import Path

import pytest
from tests.e2e.embedded.models import STANDARD, python_service, slow, write_model
from tests.embedded import Platform

from pilotlight.targets.target import RevisionStatus

INFER = "/slow/v2/models/slow/infer"
# Loads when it is told to.
TOLD = """
import pathlib
import time

SIGN = pathlib.Path({sign!r})
while not SIGN.exists():
    time.sleep(0.01)
INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    return x
"""


def row(platform: Platform) -> RevisionStatus:
    return platform.status("slow").revisions[0]


def conditions(platform: Platform) -> dict[str, str]:
    return {condition.type: condition.status for condition in platform.status("slow").conditions}


def test_figures_are_those_of_the_requests_that_were_made(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(python_service(write_model(tmp_path), annotations="    autoscaling.knative.dev/window: 60s"))
    platform.wait_phase("Ready", name="slow")
    assert (row(platform).requests, row(platform).p50_ms, row(platform).error_percent) == (0, None, None)
    asked = [slow(0.11)] * 12 + [slow(-1.0)] * 3
    took = []
    for body, status in zip(asked, [200] * 12 + [500] * 3, strict=True):
        began = time.monotonic()
        assert platform.ask(INFER, body).status == status
        took.append(1000 * (time.monotonic() - began))
    platform.wait(lambda: row(platform).requests == 15, "every request to be counted")
    seen = row(platform)
    assert seen.error_percent == pytest.approx(20.0)
    assert seen.p50_ms is not None
    assert seen.p99_ms is not None
    assert 100 < seen.p50_ms <= max(250, 2.5 * max(took))  # within its bucket, or a later one on a busy machine
    assert seen.p50_ms <= seen.p99_ms
    assert seen.cold_starts == 0
    assert seen.decision.startswith("1: ")
    assert platform.ask("/slow/v2/models/nobody/infer", slow()).status == 404  # a client's mistake is no error
    platform.wait(lambda: row(platform).requests == 16, "it to be counted")
    assert row(platform).error_percent == pytest.approx(100 * 3 / 16)


def test_a_model_is_loading_then_loaded_then_on_standby(platform: Platform, tmp_path: Path) -> None:
    sign = tmp_path / "go"
    uri = write_model(tmp_path / "model", TOLD.format(sign=str(sign)))
    limits = "    minReplicas: 0\n    maxReplicas: 1"
    platform.deploy(python_service(uri, annotations="    autoscaling.knative.dev/window: 6s", predictor=limits))
    platform.wait(lambda: row(platform).model_state == "Loading", "its load to begin")
    platform.wait(lambda: bool(platform.replicas()), "the process")
    assert platform.status("slow").phase == "Progressing"
    loading = {
        "PredictorReady": "Unknown", "LatestDeploymentReady": "Unknown", "IngressReady": "True", "Ready": "Unknown",
    }  # fmt: skip
    platform.wait(lambda: conditions(platform) == loading, "its route")  # the gateway may be late on a busy machine
    sign.touch()
    platform.wait(lambda: row(platform).model_state == "Loaded", "its load to end")
    platform.wait(lambda: set(conditions(platform).values()) == {"True"}, "its status to be read")
    platform.wait(lambda: row(platform).model_state == "Standby", "it to fall asleep")
    assert platform.status("slow").phase == "Standby"
    assert set(conditions(platform).values()) == {"True"}
    sign.unlink()
    connection_waits = platform.target.scale(("default", "slow"), {"minReplicas": 1})
    assert connection_waits.phase in ("Standby", "Progressing")
    platform.wait(lambda: row(platform).model_state == "Loading", "it to load again")
    assert platform.status("slow").message == "a replica is starting"
    sign.touch()
    platform.wait_phase("Ready", name="slow")


def test_a_model_that_waits_for_a_gpu_is_pending_and_says_so(platform: Platform, tmp_path: Path) -> None:
    gpus = "      resources: {limits: {nvidia.com/gpu: '64'}}"
    platform.deploy(python_service(write_model(tmp_path), annotations=STANDARD, model=gpus))
    platform.wait(lambda: row(platform).model_state == "Pending" and bool(row(platform).reason), "the reason")
    assert "GPU" in row(platform).reason
    assert platform.status("slow").phase == "Progressing"
    assert row(platform).reason in platform.status("slow").message


def test_a_model_that_cannot_be_loaded_says_why_in_its_conditions(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(python_service(write_model(tmp_path, "raise RuntimeError('no weights today')")))
    platform.wait_phase("Failed", name="slow")
    assert row(platform).model_state == "FailedToLoad"
    found = {condition.type: condition for condition in platform.status("slow").conditions}
    assert (found["PredictorReady"].status, found["PredictorReady"].reason) == ("False", "FailedToLoad")
    assert found["Ready"].status == found["LatestDeploymentReady"].status == "False"
    assert "no weights today" in found["Ready"].message
