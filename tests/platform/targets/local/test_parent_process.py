"""The parent process: when it starts the control process again, and when it ends."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.eventually import eventually

from pilotlight.targets.local import control_process_launcher, parent_process
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.parent_process import delay_s, failures_after
from pilotlight.targets.local.supervisor.process_inspection import home_processes

NOT_STARTED = "2026-11-17 01:00:00,000 ERROR pilotlight.daemon: not started: the disk is full"
STARTED = "2026-11-17 01:00:00,000 INFO pilotlight.daemon: started: python -m …"
AFTER = "2026-11-17 01:00:00,000 WARNING pilotlight.parent: the control process was terminated by signal 9; …"


def test_delays_grow_to_a_bound() -> None:
    assert [delay_s(failures) for failures in range(8)] == [0.2, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(
    ("status", "lived_s", "failures"),
    [
        (-9, 0.5, 3), (-9, 2.0, 0),  # killed while it started; killed while it served
        (1, 2.0, 4), (1, 29.0, 4), (1, 30.0, 0),  # refuses its state
        (0, 0.1, 4), (None, 0.0, 0),  # another one has the lock; adopted
    ],
)  # fmt: skip
def test_only_starts_that_fail_count(status: int | None, lived_s: float, failures: int) -> None:
    assert failures_after(3, status, lived_s) == failures


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([STARTED, NOT_STARTED], "the disk is full"), ([NOT_STARTED, STARTED], ""), ([STARTED, AFTER], ""), ([], ""),
        ([STARTED, AFTER, NOT_STARTED, AFTER], "the disk is full"),
        ([STARTED, "… ERROR pilotlight.daemon: a look at the memory failed", AFTER], ""),
    ],
)  # fmt: skip
def test_the_reason_is_that_of_the_last_start_if_it_failed(lines: list[str], reason: str) -> None:
    assert control_process_launcher.reason_in(lines) == reason


@contextmanager
def running(home: Home) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-I", "-S", parent_process.__file__, "--home", str(home.root)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def note_starts(home: Home, code: int = 1) -> Path:
    """A control process that writes down its start and fails."""
    note = home.root / "starts"
    program = f"import sys; open({str(note)!r}, 'a').write('x'); print('said by it'); sys.exit({code})"
    control_process_launcher.record_restart_command(home, (sys.executable, "-c", program))
    return note


def test_a_control_process_is_restarted_once_the_lock_is_free_with_its_output_in_the_log(tmp_path: Path) -> None:
    home = Home(tmp_path / "with space").create()
    note = note_starts(home)
    (home.logs / "daemon.log").touch()
    held = control_process_launcher.lock(home)
    assert held is not None
    with running(home) as parent:
        eventually(lambda: control_process_launcher.parent_running(home), "the parent")
        assert home_processes(home) == {parent.pid: "parent process"}
        assert not note.exists()
        held.close()
        eventually(lambda: note.exists() and note.read_text() == "xx", "two starts")
        log = (home.logs / "daemon.log").read_text()
        assert "the control process has ended; restarting it in 0.2 s" in log
        assert "the control process exited with code 1; restarting it in 1 s" in log
        assert "said by it" in log
        control_process_launcher.record_stopped(home)
        assert parent.wait(10) == 0


def test_a_parent_ends_after_down_and_with_its_home(tmp_path: Path) -> None:
    for end in (control_process_launcher.record_stopped, lambda home: os.rename(home.root, tmp_path / "elsewhere")):
        home = Home(tmp_path / "home").create()
        note = note_starts(home)
        held = control_process_launcher.lock(home)
        assert held is not None
        with running(home) as parent:
            eventually(lambda home=home: control_process_launcher.parent_running(home), "the parent")
            end(home)
            held.close()
            assert parent.wait(10) == 0
        assert not note.exists()


def test_a_home_has_one_parent(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    note_starts(home)
    with open(home.parent_lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with running(home) as parent:
            assert parent.wait(10) == 0


def test_a_command_that_cannot_be_executed_is_logged_and_tried_again(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    control_process_launcher.record_restart_command(home, ("/nowhere/python",))
    with running(home) as parent:
        eventually(lambda: "/nowhere/python" in control_process_launcher.failure_reason(home), "the reason")
        assert parent.poll() is None
    assert control_process_launcher.failure_reason(home) == (
        "the control process cannot be started: /nowhere/python: No such file or directory"
    )


def test_a_parent_is_small(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    held = control_process_launcher.lock(home)
    assert held is not None
    with held, running(home) as parent:
        eventually(lambda: control_process_launcher.parent_running(home), "the parent")
        status = Path(f"/proc/{parent.pid}/status").read_text().split()
        assert int(status[status.index("VmRSS:") + 1]) < 16_000  # KiB; most of it is shared
        assert int(status[status.index("Threads:") + 1]) == 1
