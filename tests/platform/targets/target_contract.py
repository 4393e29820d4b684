"""What every target does that the control process of the embedded platform serves: a suite that each runs for itself.

A test module makes a `TargetGround` in a fixture called `ground` and derives its class from `TargetContract`. Documents
are deployed as `platformctl` does it; what runs is the real predictor with a real model.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.embedded import Platform, inference_service, load

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.target import ServiceStatus

KEY = ("default", "iris")
SECRET = "planted-value-that-nobody-may-see"
SECOND = "    containerConcurrency: 32"  # another template, so another revision
HUB = f"""
apiVersion: v1
kind: Secret
metadata: {{name: hub}}
stringData: {{token: {SECRET}}}
---
"""
TOKEN = "      env: [{name: HUB_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]"


@dataclass
class TargetGround:
    """One target. `replicas` names what runs of this platform there, as its daemon tells: containers, jobs, pids."""

    platform: Platform
    model: str  # URI of the iris model
    replicas: Callable[[], list[str]]
    wakes: bool = True  # scales to zero
    patience_s: float = 120.0

    def document(self, least: int = 1, predictor: str = "", model: str = "", uri: str = "") -> str:
        return inference_service(
            "iris", "onnx", uri or self.model, least=least, most=3, predictor=predictor, model=model
        )

    @contextmanager
    def deployed(self, document: str) -> Iterator[ServiceStatus]:
        """Ready within the block, and gone after it."""
        self.platform.deploy(document)
        try:
            yield self.platform.wait_phase("Ready", seconds=self.patience_s)
        finally:
            self.delete()

    def delete(self) -> None:
        self.platform.target.delete(KEY)
        self.wait(lambda: not self.platform.target.list(None), "the service to be gone")
        self.wait(lambda: not self.replicas(), "every replica to be gone")

    def wait(self, holds: Callable[[], object], what: str) -> None:
        self.platform.wait(lambda: bool(holds()), f"{what}: {self.replicas()}", self.patience_s)

    def ready(self, count: int) -> bool:
        return sum(row.ready for row in self.platform.status().revisions) == count


class TargetContract:
    """Derived from by the tests of each target; `ground` is their fixture."""

    def test_a_service_is_deployed_asked_watched_and_leaves_nothing(self, ground: TargetGround) -> None:
        with ground.deployed(ground.document()) as status:
            assert status.revisions[0].model_state == "Loaded"
            assert len(ground.replicas()) == 1
            reply = ground.platform.ask()
            assert reply.status == 200
            assert reply.json()["outputs"][0]["shape"] == [1, 3]
            lines = list(ground.platform.target.logs(KEY, follow=False, previous=False, replica="", tail=100))
            assert any("ready" in line.lower() for line in lines)
            assert any(event.startswith("Deployed: ") for event in ground.platform.events(KEY))
        with pytest.raises(NotFound):
            ground.platform.status()

    def test_two_replicas_serve_and_one_goes_again(self, ground: TargetGround) -> None:
        with ground.deployed(ground.document()):
            ground.platform.target.scale(KEY, {"minReplicas": 2})
            ground.wait(lambda: ground.ready(2), "two replicas to be ready")
            assert len(ground.replicas()) == 2
            with load(ground.platform) as traffic:
                ground.platform.target.scale(KEY, None)
                ground.wait(lambda: len(ground.replicas()) == 1, "the second replica to end")
            assert traffic.answers
            assert not traffic.failed

    def test_a_new_revision_takes_over_without_a_failed_request(self, ground: TargetGround) -> None:
        with ground.deployed(ground.document()) as first, load(ground.platform) as traffic:
            ground.platform.deploy(ground.document(predictor=SECOND))
            ground.wait(lambda: ground.platform.status().revisions[0].percent == 100, "the second revision")
            ground.wait(lambda: len(ground.replicas()) == 1, "the first revision's replica to end")
            assert ground.platform.status().revisions[0].name != first.revisions[0].name
            ground.platform.wait(lambda: len(traffic.answers) > 50, "requests")
            assert not traffic.failed

    def test_a_service_falls_to_zero_and_is_woken_by_a_request_or_is_refused(self, ground: TargetGround) -> None:
        if not ground.wakes:
            with pytest.raises(PlatformError, match=r"minReplicas"):
                ground.platform.deploy(ground.document(least=0))
            with ground.deployed(ground.document()), pytest.raises(PlatformError, match="min is 0"):
                ground.platform.target.scale(KEY, {"minReplicas": 0})
            return
        with ground.deployed(ground.document(least=0)):
            ground.platform.wait_phase("Standby", seconds=ground.patience_s)
            ground.wait(lambda: not ground.replicas(), "the last replica to end")
            assert ground.platform.ask(timeout=ground.patience_s).status == 200
            assert len(ground.replicas()) == 1

    def test_a_killed_control_process_finds_its_replicas_again(self, ground: TargetGround) -> None:
        with ground.deployed(ground.document()):
            before = ground.replicas()
            ground.platform.kill_control()
            assert ground.platform.ask().status == 200  # by the gateway, which lives on
            ground.platform.wait(ground.platform.answers, "the next control process")
            ground.wait(lambda: ground.ready(1), "the replica to be ready again")
            assert ground.replicas() == before
            ground.platform.target.scale(KEY, {"minReplicas": 2})
            ground.wait(lambda: ground.ready(2), "another replica")

    def test_a_model_that_cannot_be_loaded_says_why_and_leaves_nothing(self, ground: TargetGround) -> None:
        missing = re.sub(r"[^/]+$", "missing.onnx", ground.model)
        ground.platform.deploy(ground.document(uri=missing))
        try:
            ground.wait(lambda: "missing.onnx" in ground.platform.status().message, "the reason")
        finally:
            ground.delete()

    def test_a_secret_reaches_the_replica_and_no_command_line(self, ground: TargetGround) -> None:
        with ground.deployed(HUB + ground.document(model=TOKEN)):
            assert any(SECRET in text for text in processes("environ"))
            assert not [text for text in processes("cmdline") if SECRET in text]


def processes(file: str) -> list[str]:
    """This file of every process on this machine."""
    texts = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                texts.append((folder / file).read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return texts
