"""Damaged, lost and removed state: what serves goes on, every verb says what is wrong, and there is a way back."""

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.cli.test_up_down import typed
from tests.embedded import FLOWER, commands_of, processes_of, serverless
from tests.eventually import eventually

from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.process_inspection import home_processes
from pilotlight.targets.slurm.job import Note, home_key

OWN_ROLES = frozenset({"parent process", "control process", "gateway"})


@pytest.fixture
def running(environ: dict[str, str], home: Home) -> Iterator[dict[str, str]]:
    """One service with one replica."""
    file = home.root.parent / "service.yaml"
    file.write_text(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    code, _, err = typed(environ, "deploy", "-f", str(file))
    assert code == 0, err
    yield environ
    if processes_of(home):
        typed(environ, "down", "--timeout", "5")


def ask(environ: dict[str, str]) -> int:
    connection = HTTPConnection("127.0.0.1", int(environ["PILOTLIGHT_GATEWAY_PORT"]), timeout=20)
    with closing(connection):
        connection.request("POST", "/iris/v2/models/iris/infer", json.dumps(FLOWER))
        return connection.getresponse().status


def kill_control(home: Home) -> None:
    address = control_process_launcher.living(home)
    assert address is not None
    os.kill(address.pid, signal.SIGKILL)
    assert control_process_launcher.wait_exit(address, 60)


def control_processes(home: Home) -> list[int]:
    return [pid for pid, role in home_processes(home).items() if role == "control process"]


def replicas(home: Home) -> list[int]:
    return [pid for pid, command in commands_of(home) if "pilotlight_predictor" in command and "shim" not in command]


def checks(environ: dict[str, str]) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(typed(environ, "doctor", "-o", "json")[1])["checks"]}


def garble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(1).randbytes(path.stat().st_size - 4096))


def remove_database(path: Path) -> None:
    for file in path.parent.glob("state.db*"):
        file.unlink()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "garbage": garble, "truncated": lambda path: os.truncate(path, 20_000), "lost": remove_database,
}  # fmt: skip


@pytest.mark.parametrize(
    "damage", ["truncated", *(pytest.param(each, marks=pytest.mark.long) for each in ("garbage", "lost"))]
)
def test_without_its_state_a_platform_serves_on_and_comes_back_from_a_backup(
    running: dict[str, str],
    home: Home,
    tmp_path: Path,
    damage: str,
) -> None:
    backup = tmp_path / "backup.db"
    code, out, err = typed(running, "backup", str(backup), "-o", "json")
    assert (code, json.loads(out)["services"]) == (0, 1), err
    before = replicas(home)
    log = home.logs / "daemon.log"
    (control,) = control_processes(home)
    os.kill(control, signal.SIGSTOP)  # so that it does not write meanwhile
    DAMAGE[damage](home.database)
    os.kill(control, signal.SIGKILL)
    eventually(lambda: "platformctl restore FILE" in log.read_text())
    assert ask(running) == 200
    assert replicas(home) == before
    eventually(lambda: control_process_launcher.failure_reason(home))
    for verb in (("status",), ("list",), ("events",), ("logs", "iris"), ("status", "iris")):
        code, out, err = typed(running, *verb, "-o", "json")
        assert (code, out.count("\n") > 1) == (1, True), (verb, out, err)
        said = json.loads(out)
        assert said["error"].startswith("the platform should run and does not: ")
        assert "platformctl restore FILE" in said["error"]
        assert "platformctl up --forget" in said["error"]
        assert (said["error"] in err, said["hint"] in err, said["exit_code"]) == (True, True, 1)
    for verb in (("up",), ("infer", "iris", "--data", "{}")):
        code, _, err = typed(running, *verb)
        said = [line for line in err.splitlines() if not line.startswith("starting the platform")]
        assert (code, len(said)) == (1, 2), err
        assert "the platform cannot be started: " in said[0]
        assert "platformctl restore FILE" in said[0]
        assert "platformctl up --forget" in said[0]
        assert "services keep running; stop them with platformctl down" in said[1]
    found = checks(running)["state"]
    assert found["level"] == "fail"
    assert "platformctl restore FILE" in found["fix"]
    assert ask(running) == 200
    assert replicas(home) == before
    code, out, err = typed(running, "restore", str(backup), "-o", "json")
    assert (code, json.loads(out)["services"]) == (0, 1), err
    code, _, err = typed(running, "up")
    assert code == 0, err
    assert replicas(home) == before, "the backup knows the replica, so it is adopted"
    assert ask(running) == 200
    code, _, err = typed(running, "down")
    assert code == 0, err
    assert not processes_of(home)


def test_services_at_zero_keep_their_routes_when_the_state_is_lost(environ: dict[str, str], home: Home) -> None:
    file = home.root.parent / "service.yaml"
    file.write_text(serverless())
    assert typed(environ, "deploy", "-f", str(file))[0] == 0
    eventually(lambda: not replicas(home))
    remove_database(home.database)
    kill_control(home)
    code, _, err = typed(environ, "up")
    assert code == 1
    assert "is new while the gateway routes 1 service: the state was lost" in err
    code, _, err = typed(environ, "down")
    assert code == 0, err
    assert not processes_of(home)


@pytest.mark.parametrize("words", [("down",), pytest.param(("up", "--forget"), marks=pytest.mark.long)], ids=" ".join)
def test_a_job_of_a_lost_state_goes_on_until_somebody_wants_its_end(
    words: tuple[str, ...], environ: dict[str, str], home: Home, tmp_path: Path
) -> None:
    (home.run / "slurm/iris-1").mkdir(parents=True, mode=0o700)
    job = f"17|RUNNING|n1|iris-1|{Note(home_key(home)).text}|None"
    programs = {"squeue": f'[ -e "$0.ended" ] || echo "{job}"', "scancel": f": > {tmp_path}/squeue.ended"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    code, _, err = typed(environ, "up")
    assert code == 1
    assert "is new while slurm runs iris-1: the state was lost" in err
    assert not (tmp_path / "squeue.ended").exists()
    code, _, err = typed(environ, *words)
    assert code == 0, err
    assert (tmp_path / "squeue.ended").exists()
    assert not list(home.run.glob("slurm/*"))
    typed(environ, "down")


def test_down_ends_everything_with_a_damaged_state(running: dict[str, str], home: Home) -> None:
    garble(home.database)
    kill_control(home)
    code, out, err = typed(running, "down", "-o", "json")
    assert code == 0, err
    assert json.loads(out)["replicas"] == 1
    assert "ending its processes by their pids" in err
    assert not processes_of(home)


def test_forget_starts_with_nothing_and_keeps_the_damaged_state(running: dict[str, str], home: Home) -> None:
    code, _, err = typed(running, "up", "--forget")
    assert code == 2
    assert "runs already" in err
    garble(home.database)
    kill_control(home)
    code, _, err = typed(running, "up", "--forget")
    assert code == 0, err
    assert list(home.root.glob("state.db.*"))
    eventually(lambda: not replicas(home))
    assert eventually(lambda: ask(running) == 404)
    assert typed(running, "list", "-o", "name")[1] == ""
    kill_control(home)  # the next one does not forget: a platform without services is no lost state
    assert eventually(lambda: typed(running, "list", "-o", "name")[0] == 0 and control_process_launcher.living(home))
    assert typed(running, "down")[0] == 0


@pytest.mark.parametrize("verb", [pytest.param("down", marks=pytest.mark.long), "up"])
def test_a_state_folder_that_was_removed_is_noticed(running: dict[str, str], home: Home, verb: str) -> None:
    shutil.rmtree(home.root)
    for words in (("status",), ("list",), ("up",)):
        code, _, err = typed(running, *words)
        assert code == 1, words
        assert f"{home.root} was removed or replaced while the platform runs" in err
        assert "platformctl down ends them" in err
    assert checks(running)["platform"]["level"] == "fail"
    assert ask(running) == 200
    if verb == "up":  # and its control process dies: nobody ends the replicas, nobody holds requests
        before = replicas(home)
        (control,) = control_processes(home)
        os.kill(control, signal.SIGKILL)
        eventually(lambda: not {"control process", "parent process"} & set(home_processes(home).values()))
        code, _, err = typed(running, "up")
        assert code == 1
        assert "is new while" in err
        assert f"pids {before[0]}" in err or "pids" in err
        assert ask(running) == 200
        assert replicas(home) == before
    code, _, err = typed(running, "down")
    assert code == 0, err
    assert not processes_of(home)


def test_a_running_platform_is_backed_up_and_not_restored(running: dict[str, str], home: Home, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    assert typed(running, "backup", str(backup))[0] == 0
    code, _, err = typed(running, "restore", str(backup))
    assert code == 2
    assert "the platform is running; stop it first: platformctl down" in err
    assert typed(running, "down")[0] == 0
    assert typed(running, "backup", str(tmp_path / "stopped.db"))[0] == 0
    with closing(sqlite3.connect(tmp_path / "stopped.db")) as copy:
        assert copy.execute("SELECT name FROM services").fetchall() == [("iris",)]
    shutil.copy(home.database, tmp_path / "copied.db")  # the file alone
    remove_database(home.database)
    code, _, err = typed(running, "restore", str(tmp_path / "copied.db"))
    assert code == 0, err
    assert typed(running, "up")[0] == 0
    assert typed(running, "list", "-o", "name")[1] == "default/iris\n"
    assert ask(running) == 200
    assert typed(running, "down")[0] == 0


def test_what_should_run_and_does_not_is_an_error_until_up_or_down(running: dict[str, str], home: Home) -> None:
    """As after a crash of everything, or a reboot."""
    for pid in sorted(home_processes(home), key=lambda pid: home_processes(home).get(pid) != "parent process"):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not processes_of(home))
    for verb in (("status",), ("list",), ("events",), ("status", "iris"), ("logs", "iris")):
        code, out, err = typed(running, *verb)
        assert (code, out) == (1, ""), verb
        assert "the platform should run and does not: its control process has exited, see " in err
        assert "start it with platformctl up" in err
    said = json.loads(typed(running, "list", "-o", "json")[1])
    assert (said["exit_code"], said["hint"]) == (1, "start it with platformctl up")
    assert checks(running)["platform"]["level"] == "fail"
    assert typed(running, "up")[0] == 0
    assert typed(running, "list", "-o", "name")[:2] == (0, "default/iris\n")
    assert typed(running, "down")[0] == 0
    assert typed(running, "list")[0] == 0
    assert checks(running)["platform"]["level"] == "ok"


def test_up_adopts_the_replicas_of_a_platform_whose_other_processes_were_killed(
    running: dict[str, str], home: Home
) -> None:
    before = replicas(home)

    def ended() -> bool:
        """Kill what there is: the control process may start a parent before it is killed, and that one the other."""
        living = [pid for pid, role in home_processes(home).items() if role in OWN_ROLES]
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not living

    eventually(ended)
    assert typed(running, "status")[0] == 1
    assert typed(running, "up")[0] == 0
    assert (ask(running), replicas(home)) == (200, before)


def test_status_waits_for_a_control_process_that_is_being_restarted(running: dict[str, str], home: Home) -> None:
    kill_control(home)
    code, out, err = typed(running, "list", "-o", "name")
    assert (code, out) == (0, "default/iris\n"), err
