"""Processes of a home that no control process ends: who gets which signal, and when."""

import signal
import subprocess
import sys
from pathlib import Path

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.home_shutdown import end_processes, next_signals, processes_of_removed_home
from pilotlight.targets.local.supervisor.process_inspection import home_processes

PROCESSES = {1: "control process", 2: "gateway", 3: "replica iris-1", 4: "pilot light", 5: "log writer"}


def test_control_processes_end_first_then_the_gateway_then_replicas() -> None:
    assert next_signals(PROCESSES, (), late=False) == {1: signal.SIGKILL, 2: signal.SIGTERM}
    assert next_signals({2: "gateway", 3: "replica a"}, {2}, late=False) == {}
    serving = {3: "replica a", 4: "pilot light"}
    assert next_signals({**serving, 5: "log writer"}, {2}, late=False) == dict.fromkeys(serving, signal.SIGTERM)
    assert next_signals({5: "log writer"}, {2, 3, 4}, late=False) == {5: signal.SIGTERM}
    assert next_signals({3: "replica a"}, {3}, late=False) == {}
    assert next_signals(PROCESSES, {1, 2, 3}, late=True) == dict.fromkeys(PROCESSES, signal.SIGKILL)


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    script = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    environ = {"PILOTLIGHT_HOME": str(home.root), "PILOTLIGHT_REPLICA": "iris-1"}
    with subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert home_processes(home) == {process.pid: "replica iris-1"}
        assert not processes_of_removed_home(home)
        assert end_processes(home, 0.2) == {process.pid: "replica iris-1"}
        assert process.wait(10) == -signal.SIGKILL
    assert end_processes(home, 0.2) == {}
