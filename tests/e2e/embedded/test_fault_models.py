"""Models that cannot be loaded, each in its own way: the revision before goes on serving, and `status` says why."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import IRIS, Platform, load, serverless
from tests.faults import model, seconds, served

from pilotlight.targets.target import RevisionStatus, Share

ASK = "/slow/v2/models/slow/infer"
SOON = "    serving.knative.dev/progress-deadline: 5s"
RAISES = "raise RuntimeError('the weights are of another model')"
HANGS = (
    "import time\nclass Model:\n    def initialize(self, args): time.sleep(3600)\n    def execute(self, inputs): ..."
)
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
EXITS = "import os\nos._exit(3)"
# It answers its warm-up's zeros, so that its first real request is what ends it.
SWELLS = """
import time
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}
kept = []

def predict(x):
    if x[0]:
        kept.append(b"\\1" * (1 << 30))
        time.sleep(3600)  # where no kernel keeps the limit, somebody looks once a second
    return x
"""


@pytest.fixture
def platform(shared: Platform, tmp_path: Path) -> Iterator[Platform]:
    """With a service that works, called slow; emptied after each test."""
    shared.deploy(served(model(tmp_path / "good")))
    shared.wait_phase("Ready", name="slow")
    yield shared
    shared.empty()


def after(platform: Platform, document: str) -> RevisionStatus:
    """What is told of the revision that a document brings, once it is known that it does not work."""
    good = platform.status("slow").revisions[0].name
    platform.deploy(document)
    status = platform.wait_phase("Degraded", name="slow")
    assert f"{good} keeps serving" in status.message
    assert platform.ask(ASK, seconds(0.01)).status == 200
    (serving,) = [row for row in status.revisions if row.name == good]
    assert (serving.percent, serving.model_state) == (100, "Loaded"), platform.events()
    (failed,) = [row for row in status.revisions if row.name != good]
    assert failed.model_state == "FailedToLoad"
    assert failed.reason in status.message
    return failed


def test_a_model_that_raises_while_it_is_loaded(platform: Platform, tmp_path: Path) -> None:
    failed = after(platform, served(model(tmp_path / "bad", RAISES)))
    assert "the weights are of another model" in failed.reason


@pytest.mark.long  # as one that raises
def test_a_model_that_is_no_python(platform: Platform, tmp_path: Path) -> None:
    failed = after(platform, served(model(tmp_path / "bad", "def predict(x:")))
    assert "model.py" in failed.reason


def test_a_model_that_hangs_while_it_is_loaded(platform: Platform, tmp_path: Path) -> None:
    failed = after(platform, served(model(tmp_path / "bad", HANGS), annotations=SOON))
    assert "not ready within the progress deadline of 5 s" in failed.reason
    platform.wait(lambda: len(platform.replicas()) == 1, "no further try")


def test_a_model_that_ends_its_process_by_a_signal(platform: Platform, tmp_path: Path) -> None:
    failed = after(platform, served(model(tmp_path / "bad", DIES)))
    assert failed.reason == "ended by signal 11 (segmentation fault)"


@pytest.mark.long  # as by a signal
def test_a_model_that_ends_its_process_by_itself(platform: Platform, tmp_path: Path) -> None:
    failed = after(platform, served(model(tmp_path / "bad", EXITS)))
    assert failed.reason.startswith("exit code 3")


def test_a_model_whose_file_is_cut_off(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(IRIS.read_bytes()[:100])
    document = served((tmp_path / "cut.onnx").as_uri()).replace("name: python", "name: onnx")
    assert "cut.onnx" in after(platform, document).reason


def test_a_model_that_is_not_there(platform: Platform, tmp_path: Path) -> None:
    assert "gone" in after(platform, served((tmp_path / "gone").as_uri())).reason


def test_a_model_beyond_its_memory_while_it_is_loaded(platform: Platform, tmp_path: Path) -> None:
    greedy = "import time\nkept = b'\\1' * (1 << 30)\ntime.sleep(3600)\ndef predict(x): return x"
    failed = after(platform, served(model(tmp_path / "bad", greedy), limits="memory: 400Mi"))
    assert "limit" in failed.reason
    assert "400 MiB" in failed.reason


def test_a_model_beyond_its_memory_while_it_serves_is_started_again_and_its_reason_told(
    platform: Platform, tmp_path: Path
) -> None:
    platform.deploy(served(model(tmp_path / "swelling", SWELLS), limits="memory: 400Mi"))
    platform.wait(lambda: platform.status("slow").revisions[0].percent == 100, "the new revision")
    before = platform.replicas()
    assert platform.ask(ASK, seconds(1.0)).status == 502
    platform.wait(lambda: any("400 MiB" in event for event in platform.events()), "the reason among the events")
    platform.wait(lambda: platform.status("slow").revisions[0].ready == 1, "the next one")
    platform.wait(lambda: not set(before) & set(platform.replicas()), "the old one to be gone")
    assert platform.ask(ASK, seconds(0.0)).status == 200


def test_a_broken_canary_takes_no_request_from_the_stable_one(platform: Platform, tmp_path: Path) -> None:
    with load(platform, ASK) as traffic:
        document = served(model(tmp_path / "bad", RAISES), predictor="    canaryTrafficPercent: 50")
        after(platform, document)
    assert traffic.answers
    assert {status for status, _ in traffic.answers} == {400}  # the load's tensor is not this model's


def test_a_deployment_keeps_its_old_replicas_when_the_new_template_does_not_work(
    platform: Platform, tmp_path: Path
) -> None:
    raw = serverless(annotations="    serving.kserve.io/deploymentMode: Standard")
    platform.deploy(raw.replace("minReplicas: 0", "minReplicas: 2"))
    platform.wait(lambda: platform.status().revisions[0].ready == 2, "two replicas")
    (tmp_path / "cut.onnx").write_bytes(IRIS.read_bytes()[:100])
    with load(platform) as traffic:
        broken = serverless(
            annotations="    serving.kserve.io/deploymentMode: Standard", uri=f"{tmp_path.as_uri()}/cut.onnx"
        )
        platform.deploy(broken.replace("minReplicas: 0", "minReplicas: 2"))
        assert "cut.onnx" in platform.wait_phase("Degraded").message
    assert traffic.answers
    assert not traffic.failed, traffic.failed[:5]


def test_a_broken_revision_is_told_though_shares_set_by_hand_lead_past_it(platform: Platform, tmp_path: Path) -> None:
    """Otherwise a deploy would wait for word of something that nobody starts."""
    good = platform.status("slow").revisions[0].name
    platform.target.traffic(("default", "slow"), [Share(good, 100)])
    failed = after(platform, served(model(tmp_path / "bad", RAISES)))
    assert failed.percent == 0


def test_a_revision_that_shares_set_by_hand_lead_past_is_started_once_and_ends(
    platform: Platform, tmp_path: Path
) -> None:
    good = platform.status("slow").revisions[0].name
    before = platform.replicas()
    platform.target.traffic(("default", "slow"), [Share(good, 100)])
    platform.deploy(served(model(tmp_path / "second")))
    platform.wait_phase("Ready", name="slow")
    second = platform.status("slow").revisions[0]
    assert (second.name != good, second.percent) == (True, 0)
    platform.wait(lambda: platform.replicas() == before, "its replica to end")


def test_a_pause_after_crashes_does_not_outlive_its_service(platform: Platform, tmp_path: Path) -> None:
    """The next service of that name has nothing to do with it."""
    platform.deploy(served(model(tmp_path / "bad", EXITS), name="reborn"))
    platform.wait(lambda: crashes(platform) >= 3, "the pause of two seconds")
    over = time.monotonic() + 2 ** (crashes(platform) - 2) + 0.5
    platform.target.delete(("default", "reborn"))
    platform.wait(lambda: len(platform.target.list(None)) == 1, "it to be gone")
    platform.deploy(served(model(tmp_path / "good"), name="reborn"))
    platform.wait_phase("Ready", name="reborn")
    replicas = platform.replicas()
    platform.wait(lambda: time.monotonic() > over, "the pause to be over")
    assert platform.replicas() == replicas
    assert platform.status("reborn").phase == "Ready"
    assert platform.target.releases(("default", "reborn"))


def crashes(platform: Platform) -> int:
    return sum(event.startswith("Failed:") for event in platform.events(("default", "reborn")))


def test_a_model_that_hangs_is_replaced_and_the_request_named(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(served(model(tmp_path / "slow"), predictor="    timeout: 1"))
    platform.wait(lambda: platform.status("slow").revisions[0].percent == 100, "the new revision")
    platform.wait_phase("Ready", name="slow")
    before = platform.replicas()
    assert platform.ask(ASK, {**seconds(3600.0), "id": "r-7"}).status == 504
    platform.wait(lambda: any("(requests r-7)" in event for event in platform.events()), "the reason among the events")
    platform.wait(lambda: not set(before) & set(platform.replicas()), "its end")
    platform.wait(lambda: platform.ask(ASK, seconds(0.0)).status == 200, "its successor, however long it takes")


def test_a_deleted_service_leaves_no_process_of_its_model(tmp_path: Path) -> None:
    source = """
import pathlib, subprocess
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}

def predict(x):
    if x[0]:
        for own in (True, False):
            child = subprocess.Popen(["sleep", "3600"], start_new_session=own)
            pathlib.Path("FOLDER", f"{child.pid}.child").touch()
    return x
"""
    folder = tmp_path / "parent"
    with Platform(tmp_path / "home", env={"PILOTLIGHT_PILOT_LIGHT": "on"}) as platform:
        platform.deploy(served(model(folder, source)))
        platform.wait_phase("Ready", name="slow")
        # The first replica is not forked: the pilot light starts beside it.
        platform.wait(lambda: any(platform.home.run.glob("pilot-*.sock")), "the pilot light")
        first = platform.replicas()
        os.kill(first[0], signal.SIGTERM)
        platform.wait(lambda: not set(first) & set(platform.replicas()), "its end")
        assert platform.ask(ASK, seconds(1.0)).status == 200
        children = [int(mark.stem) for mark in folder.glob("*.child")]
        assert len(children) == 2
        platform.target.delete(("default", "slow"))
        platform.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the end of its children")
