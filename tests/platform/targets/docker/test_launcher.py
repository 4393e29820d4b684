"""The launcher with a docker whose every answer a test decides, for what a real daemon does too quickly."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.eventually import eventually, eventually_async
from tests.platform.targets.local.runs import revision

from pilotlight.targets.docker import launcher as module
from pilotlight.targets.docker.launcher import ContainerHandle, DockerLauncher
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.process_identity import Identity
from pilotlight.targets.local.supervisor.launcher import Ended, ReplicaAddress
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Checks, Launch, Replica
from pilotlight.targets.local.supervisor.shim import Exit

# Files of the folder say what happens: `gate` lets the image be there, `running` the container start, `away` the daemon
# not answer. Calls are noted in `calls`.
DOCKER = """#!/bin/sh
cd "$XDG_STAND_IN" || exit 9
echo "$1" >> calls
if [ -e away ] && [ "$1" != run ]; then echo "error during connect" >&2; exit 1; fi
case "$1" in
info) echo '{"NCPU": 4}' ;;
ps) if [ -e container ]; then echo "cid replica-1"; fi ;;
inspect)
    [ -e container ] || { echo "No such container: cid" >&2; exit 1; }
    pid=0; [ -e running ] && pid=1
    echo "[{\\"State\\": {\\"Pid\\": $pid, \\"ExitCode\\": 3}}]" ;;
kill) : > killed ;;
rm) rm -f container ;;
run)
    for word; do case "$word" in --cidfile=*) cidfile=${word#*=} ;; esac; done
    until [ -e gate ]; do sleep 0.01; done
    : > container; echo cid > "$cidfile"
    trap ': > terminated' TERM
    until [ -e terminated ] || [ -e killed ]; do sleep 0.01; done
    exit 3 ;;
esac
"""


@dataclass
class Observer:
    """What the launcher has told."""

    told: list[str] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    identity: Identity | None = None

    def on_pending(self, reason: str, handle: str = "") -> None:
        if reason not in self.told[-1:]:
            self.told.append(reason)

    def on_started(self, address: ReplicaAddress, handle: str = "", node: str = "") -> None:
        self.told.append("started")

    def on_process(self, identity: Identity, forked: bool = False) -> None:
        self.identity = identity

    def on_ending(self) -> None:
        self.told.append("ending")

    def on_exited(self, ended: Ended) -> None:
        self.ended.append(ended)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STAND_IN", str(tmp_path))  # of the variables that the client gets
    monkeypatch.setattr(module, "PULL_AFTER_S", 0.05)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    return tmp_path


def in_loop(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    def run(stand_in: Path) -> None:
        asyncio.run(test(stand_in))

    return run


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[ContainerHandle, Observer]]:
    home = Home(folder / "home").create()
    checks, log = Checks(Probe("/", 8080)), str(home.logs / "default/iris/replica-1.log")
    record = Replica("replica-1", "default", "iris", "iris-predictor", "iris-predictor-1", checks, log=log)
    processes, observer = ProcessLauncher(home, ""), Observer()
    try:
        yield DockerLauncher(processes).start(Launch("replica-1", revision()), record, observer), observer
        await eventually_async(lambda: observer.ended, "the end")
    finally:
        (folder / "gate").touch()
        (folder / "killed").touch()
        await processes.close(leave_running=False)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


@in_loop
async def test_a_replica_is_pending_while_its_image_is_pulled_and_ends_with_its_container(stand_in: Path) -> None:
    async with started(stand_in) as (handle, observer):
        await eventually_async(lambda: "pulling pilotlight/predictor:1" in observer.told, "the pull")
        for name in ("gate", "running"):
            (stand_in / name).touch()
        await eventually_async(lambda: "started" in observer.told and calls(stand_in)[-1] == "inspect", "the start")
        handle.terminate()
    assert observer.told == ["", "pulling pilotlight/predictor:1", "started", "ending"]
    assert observer.ended == [Ended(Exit(3))]
    assert calls(stand_in)[-1] == "rm"


@in_loop
async def test_a_pull_is_cancelled_with_its_replica(stand_in: Path) -> None:
    async with started(stand_in) as (handle, observer):
        await eventually_async(lambda: observer.identity, "the client")
        handle.terminate()
    assert "started" not in observer.told
    assert not (stand_in / "container").exists()


@in_loop
async def test_a_replica_that_ends_before_its_client_was_started_says_so(stand_in: Path) -> None:
    async with started(stand_in) as (handle, observer):
        handle.terminate()
    assert observer.ended == [Ended(reason="stopped before it started")]
    assert not (stand_in / "calls").exists() or "run" not in calls(stand_in)


@in_loop
async def test_a_signal_waits_until_the_container_runs(stand_in: Path) -> None:
    (stand_in / "gate").touch()
    async with started(stand_in) as (handle, observer):
        await eventually_async(
            lambda: (stand_in / "container").exists() and "started" in observer.told, "the container"
        )
        handle.terminate()
        await asyncio.to_thread(wait_inspected, stand_in)
        assert not (stand_in / "terminated").exists()
        (stand_in / "running").touch()
    assert (stand_in / "terminated").exists()


def wait_inspected(folder: Path) -> None:
    """Once more than before."""
    before = calls(folder).count("inspect")
    eventually(lambda: calls(folder).count("inspect") > before + 1, "another look at the container")


@in_loop
async def test_the_end_is_told_once_the_container_is_removed(stand_in: Path) -> None:
    for name in ("gate", "running"):
        (stand_in / name).touch()
    async with started(stand_in) as (_, observer):
        await eventually_async(lambda: "started" in observer.told and calls(stand_in)[-1] == "inspect", "the start")
        (stand_in / "away").touch()
        (stand_in / "killed").touch()
        await eventually_async(lambda: "ending" in observer.told, "the end of the client")
        await asyncio.to_thread(wait_inspected, stand_in)
        assert not observer.ended
        (stand_in / "away").unlink()
    assert not (stand_in / "container").exists()
