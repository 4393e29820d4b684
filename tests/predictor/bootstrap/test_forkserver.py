"""The pilot light as a process: what it answers, what it refuses, how it watches its children and when it ends."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.eventually import eventually
from tests.onnx_models import write_add_sub
from tests.predictor.bootstrap.forkservers import RunningPilotLight, clean_environment
from tests.serving import ROOT

IDLE_S = 0.3
WITHOUT_A_THREAD = """
import sys
from pilotlight_predictor.bootstrap.forkserver import main
sys.exit(main(sys.argv[1:]))
"""
WITH_A_THREAD = f"""
import threading
threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
{WITHOUT_A_THREAD}
"""

# However long the first who asks takes to come: idle begins behind it.
IDLE_ONCE_ASKED = """
import sys
from pilotlight_predictor.bootstrap import forkserver as pilot_light


class Waiting(pilot_light.PilotLight):
    def _done(self):
        return self._forks > 0 and super()._done()

    def _patience(self):
        return super()._patience() if self._forks else 0.02


pilot_light.PilotLight = Waiting
sys.exit(pilot_light.main(sys.argv[1:]))
"""
WITHOUT_A_DESCRIPTOR = f"""
import os

def refuse(pid, flags=0):
    raise OSError(24, "Too many open files")

os.pidfd_open = refuse
{WITHOUT_A_THREAD}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("repository")
    write_add_sub(folder, "add_sub")
    return str(folder)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPilotLight]:
    """For tests that leave it as they found it. Its family imports least, and any family can serve any model."""
    with RunningPilotLight(tmp_path_factory.mktemp("shared"), "python", idle_s=3600) as pilot:
        yield pilot


def test_only_its_owner_can_ask(shared: RunningPilotLight) -> None:
    assert stat.S_IMODE(shared.socket.stat().st_mode) == 0o600


def test_it_reports_its_memory_and_its_children(shared: RunningPilotLight, repository: str) -> None:
    before = shared.report()
    assert before["rss"] >= before["pss"] > 10_000_000
    child = shared.fork("--model-repository", repository)
    child.event("ready")
    report = shared.report()
    assert (report["children"], report["forks"]) == (before["children"] + 1, before["forks"] + 1)
    assert report["pss"] < before["pss"], "what the child shares must not be counted twice"
    child.end()
    eventually(lambda: shared.report()["children"] == before["children"], "the child to be reaped")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, "0\n"), (signal.SIGKILL, "137\n"), (signal.SIGSEGV, "139\n")]
)
def test_it_writes_how_a_child_ended(
    shared: RunningPilotLight, repository: str, number: signal.Signals, status: str
) -> None:
    child = shared.fork("--model-repository", repository)
    child.event("ready")
    os.kill(child.pid, number)
    assert child.exit_status() == status


def test_a_predictor_that_refuses_its_settings_says_why_in_its_log(shared: RunningPilotLight) -> None:
    child = shared.fork("--no-such-flag")
    assert child.exit_status() == "2\n"
    assert "--no-such-flag" in child.text()


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (b"not json\n", "Expecting value"),
        (b"[]\n", "must be a JSON object"),
        ({"argv": "x", "env": {}}, "argv must be a list"),
        ({"argv": [], "env": {"A": 1}}, "env must be an object of strings"),
        ({"argv": [], "env": {}, "cwd": "/no/such", "exit_file": "/x"}, "cwd = '/no/such'"),
        ({"argv": [], "env": {}, "cwd": "/", "exit_file": "x"}, "exit_file = 'x'"),
        ({"argv": [], "env": {}, "cwd": "/", "exit_file": "/x"}, "0 descriptors were sent, must be one"),
    ],
)
def test_a_request_that_it_cannot_follow_is_refused_in_one_sentence(
    shared: RunningPilotLight, request_: object, complaint: str
) -> None:
    assert complaint in shared.ask(request_)["error"]
    assert shared.report(), "and it goes on"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "MALLOC_ARENA_MAX"])
def test_a_variable_that_only_a_fresh_process_could_follow_is_refused(shared: RunningPilotLight, name: str) -> None:
    assert name in shared.try_fork(**{name: "4"})["error"]


def test_a_child_that_nobody_heard_of_is_ended(shared: RunningPilotLight, repository: str) -> None:
    before = shared.report()
    request = {
        "argv": ["--model-repository", repository, "--http-port", "0", "--metrics-port", "-1", "--grpc-port", "-1"],
        "env": clean_environment(),
        "cwd": "/",
        "exit_file": str(shared.folder / "unheard.exit"),
    }
    with (shared.folder / "unheard.log").open("wb") as log:
        shared.sent(request, log.fileno(), deaf=True).close()
    eventually(lambda: shared.report()["forks"] == before["forks"] + 1, "the fork")
    eventually(lambda: shared.report()["children"] == before["children"], "the child's end")
    assert not (shared.folder / "unheard.exit").exists()


def test_a_child_that_cannot_be_watched_is_ended_and_said_not_to_be(tmp_path: Path) -> None:
    with RunningPilotLight(tmp_path, "python", code=WITHOUT_A_DESCRIPTOR) as pilot:
        assert "Too many open files" in pilot.try_fork("--model-path", "x.onnx")["error"]
        assert pilot.report()["forks"] == 1
        children = Path(f"/proc/{pilot.process.pid}/task/{pilot.process.pid}/children")
        assert children.read_text() == ""


def test_children_that_are_gone_leave_nothing_behind(shared: RunningPilotLight) -> None:
    descriptors = Path(f"/proc/{shared.process.pid}/fd")
    children = shared.report()["children"]
    before = len(list(descriptors.iterdir()))
    for child in [shared.fork("--no-such-flag") for _ in range(20)]:
        assert child.exit_status() == "2\n"
    eventually(lambda: shared.report()["children"] == children, "all to be reaped")
    # Fewer, where a child of the test before was still being reaped when they were counted.
    eventually(lambda: len(list(descriptors.iterdir())) <= before, "descriptors to be closed")


def test_with_a_second_thread_it_refuses_to_fork(tmp_path: Path) -> None:
    with RunningPilotLight(tmp_path, "python", code=WITH_A_THREAD) as pilot:
        assert "2 threads" in pilot.try_fork("--model-path", "x.onnx")["error"]
        assert pilot.report()["forks"] == 0


def test_when_its_code_was_replaced_it_makes_room_for_another(tmp_path: Path, repository: str) -> None:
    (tmp_path / "path").mkdir()
    source = tmp_path / "path" / "pilotlight_extra.py"
    source.write_text("")
    code = f"import sys; sys.path.insert(0, {str(source.parent)!r}); import pilotlight_extra\n" + WITHOUT_A_THREAD
    with RunningPilotLight(tmp_path, "python", code=code) as pilot:
        child = pilot.fork("--model-repository", repository)
        child.event("ready")
        os.utime(source, (1, 1))
        assert "was replaced" in pilot.try_fork("--model-repository", repository)["error"]
        assert not pilot.socket.exists()
        os.kill(child.pid, signal.SIGTERM)
        assert child.exit_status() == "0\n", "it stays for the sake of those it has forked"
        assert pilot.process.wait(60) == 0


def test_a_socket_that_a_dead_one_left_is_taken_over_and_a_living_ones_is_not(
    tmp_path: Path, shared: RunningPilotLight
) -> None:
    with RunningPilotLight(tmp_path, "python") as first:
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        assert first.socket.exists()
    with RunningPilotLight(tmp_path, "python") as second:
        eventually(lambda: "listening" in second.log(), "the socket to be replaced")
        assert second.report()["forks"] == 0
    command = [sys.executable, "-m", "pilotlight_predictor.bootstrap.forkserver", "--socket", str(shared.socket)]
    late = subprocess.run(
        [*command, "--family", "python"],
        capture_output=True, text=True, cwd=ROOT, env=clean_environment(), check=False, timeout=120,
    )  # fmt: skip
    assert late.returncode == 1
    assert "another pilot light uses" in json.loads(late.stderr.splitlines()[-1])["message"]
    assert shared.report()


def test_it_ends_by_itself_when_idle_but_never_leaves_a_child(tmp_path: Path, repository: str) -> None:
    with RunningPilotLight(tmp_path, "python", IDLE_S, code=IDLE_ONCE_ASKED) as pilot:
        child = pilot.fork("--model-repository", repository)
        child.event("ready")
        started = time.monotonic()
        eventually(lambda: time.monotonic() - started > 2 * IDLE_S, "longer than idle")
        assert pilot.report()["children"] == 1
        os.kill(child.pid, signal.SIGTERM)
        assert child.exit_status() == "0\n"
        assert pilot.process.wait(60) == 0
        assert not pilot.socket.exists()


def test_told_to_end_it_lets_its_children_serve_on(tmp_path: Path, repository: str) -> None:
    with RunningPilotLight(tmp_path, "python") as pilot:
        child = pilot.fork("--model-repository", repository)
        child.event("ready")
        pilot.process.terminate()
        assert pilot.process.wait(60) == 0
        assert not pilot.socket.exists()
        assert child.request("GET", "/v2/health/ready").status == 200
        assert "1 predictors keep running" in pilot.log()
