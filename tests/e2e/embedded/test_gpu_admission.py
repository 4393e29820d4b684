"""Twelve models on a GPU that holds three: who is parked, stopped, pinned or refused, and what is learned."""

import re
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random

import pytest
from tests.e2e.embedded.fake_gpu import model, write_nvml
from tests.e2e.embedded.models import python_service, write_model
from tests.embedded import Platform, load

from pilotlight.errors import PlatformError
from pilotlight.targets.local.control.gpu_admission import MARGIN

MIB = 1 << 20
USED, DECLARED = 24 * MIB, 32 * MIB
MODELS = [f"m{index:02}" for index in range(12)]
PINNED, STOPPED = "m00", ("m01", "m02")  # the others park
GPU = "      resources: {limits: {nvidia.com/gpu: 1}}"


def document(uri: str, name: str, memory: str = "32Mi") -> str:
    values = {"gpu-memory": memory, "gpu-pinned": str(name == PINNED).lower(), "park": str(name not in STOPPED).lower()}
    annotations = "".join(f'    pilotlight.dev/{key}: "{value}"\n' for key, value in values.items())
    annotations += "    autoscaling.knative.dev/window: 1h\n"
    return python_service(uri, name=name, annotations=annotations, predictor="    minReplicas: 0", model=GPU)


@pytest.mark.long
def test_twelve_models_share_a_gpu_that_holds_three(tmp_path: Path) -> None:
    """An allocation beyond its memory would fail, and with it a request."""
    env = write_nvml(tmp_path / "nvml", 3 * DECLARED)
    uri = write_model(tmp_path / "model", model(tmp_path / "nvml", 3 * DECLARED, USED))
    with Platform(tmp_path / "home", env) as platform:
        with pytest.raises(
            PlatformError, match="needs 1Gi of GPU memory, but the largest GPU of this machine has 96Mi"
        ):
            platform.deploy(document(uri, "large", "1Gi"))
        for name in MODELS:
            platform.deploy(document(uri, name))
        for name in MODELS:
            platform.wait_phase("Ready", "Parked", "Standby", name=name)

        random, turns = Random(7), count()
        trace = random.choices(MODELS, weights=[1 / (rank + 1) for rank in range(12)], k=40) + MODELS

        def ask(name: str) -> int:
            reply = platform.ask(f"/{name}/v2/models/{name}/infer")
            if next(turns) % 10 == 0:
                check_holders(platform)
            return reply.status

        with ThreadPoolExecutor(4) as clients:
            assert Counter(clients.map(ask, trace)) == {200: len(trace)}
        check_events(platform)

        with sqlite3.connect(platform.home.database) as store:
            learned = "SELECT gpu_peak FROM revisions WHERE name = 'm11'"
            platform.wait(lambda: store.execute(learned).fetchone() == (USED,), "the memory of m11 to be measured")
        platform.kill_control()
        platform.wait(platform.answers, "the control process to be back")
        for name in ("m03", "m04", "m11"):
            assert platform.ask(f"/{name}/v2/models/{name}/infer").status == 200
        assert holders(platform)["m11"] == int(USED * MARGIN)


@pytest.mark.long
def test_a_busy_model_leaves_for_requests_that_have_waited_and_loses_none_of_its_own(tmp_path: Path) -> None:
    env = write_nvml(tmp_path / "nvml", DECLARED)
    uri = write_model(tmp_path / "model", model(tmp_path / "nvml", DECLARED, USED))
    with Platform(tmp_path / "home", env) as platform:
        platform.deploy(document(uri, "m03"))
        platform.wait_phase("Ready", name="m03")
        with load(platform, "/m03/v2/models/m03/infer", clients=2) as busy:
            platform.deploy(document(uri, "m04"))
            platform.wait(lambda: is_routed(platform, "m04"), "the route of m04")
            reply = platform.ask("/m04/v2/models/m04/infer")
            assert reply.status == 200, reply.body
            before = len(busy.answers)
            platform.wait(lambda: len(busy.answers) > before, "the busy one to have its turn again")
        assert not busy.failed
        events = platform.events(("default", "m03"))
        reason = re.compile(r"Preempted: parked: default/m04 has waited \d+ s for 32Mi of GPU 0")
        assert any(map(reason.fullmatch, events)), events


def is_routed(platform: Platform, name: str) -> bool:
    return any((each.type, each.status) == ("IngressReady", "True") for each in platform.status(name).conditions)


def holders(platform: Platform) -> dict[str, int]:
    """Bytes of the GPU by service that holds some."""
    revisions = [(status.name, row) for status in platform.target.list(None) for row in status.revisions]
    replicas = [(name, each) for name, row in revisions for each in row.replicas]
    return {name: each.gpu_memory for name, each in replicas if each.gpus and each.state not in ("parked", "exited")}


def check_holders(platform: Platform) -> None:
    held = holders(platform)
    assert sum(held.values()) <= 3 * DECLARED, held
    assert PINNED in held


def check_events(platform: Platform) -> None:
    lines = platform.events()
    assert any(
        line.startswith("Preempted: parked: default/m") and "needs 32Mi of GPU 0, idle for" in line for line in lines
    )
    assert any(line.startswith("Preempted: stopped: default/m") for line in lines)
    assert any(line.startswith("WaitingForGpu: waiting for 32Mi of a GPU held by default/m00") for line in lines)
    assert any(line.startswith("Admitted: got 32Mi of GPU 0 after") for line in lines)
    assert not [line for line in platform.events(("default", PINNED)) if line.startswith("Preempted")]
