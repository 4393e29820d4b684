"""Who a process is and what it uses, as the kernel tells it and as `ps` does where there is no /proc."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.platform.targets.local.supervisor.supervisor_harness import Stage, launch, program

from pilotlight.targets.local import process_identity
from pilotlight.targets.local.process_identity import Identity, identify
from pilotlight.targets.local.supervisor import process_inspection
from pilotlight.targets.local.supervisor.process_inspection import ExitWatch, age_s, usage
from pilotlight.targets.local.supervisor.shim import closing_inheritable


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


@pytest.fixture(params=["/proc", "ps"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ps":
        if not shutil.which("ps"):
            pytest.skip("needs ps")
        for module in (process_identity, process_inspection):
            monkeypatch.setattr(module, "PROC", Path("/nowhere"))


@pytest.mark.usefixtures("either")
def test_a_process_is_itself_until_it_has_ended(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.alive
    assert not Identity(identity.pid, identity.boot_id, identity.start_ticks - 1).alive
    assert age_s(identity) < 60
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.alive, "it waits to be reaped"
    sleeper.wait()
    assert not identity.alive


@pytest.mark.usefixtures("either")
def test_what_this_process_uses_is_plausible() -> None:
    seen = usage(os.getpid())
    assert 10 << 20 < seen.resident_bytes < 10 << 30
    assert seen.cpu_seconds >= 0


def test_children_count_to_their_parent(tmp_path: Path) -> None:
    held = "import signal; held = bytearray(100 << 20); print(len(held), flush=True); signal.pause()"
    script = f"{sys.executable} -c '{held}' & wait"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"104857600\n"
            assert usage(parent.pid).resident_bytes > 100 << 20
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


MAPS: Final = """
import ctypes, mmap, sys
path, locked, size = sys.argv[1], sys.argv[2] == "locked", int(sys.argv[3]) << 20
print("before", flush=True); sys.stdin.readline()
file = open(path, "r+b")
mapped = mmap.mmap(file.fileno(), 0)
assert mapped.find(b"y") < 0
shared = mmap.mmap(-1, size); shared.write(b"x" * size)
weights = ctypes.c_char.from_buffer(mapped)
failed = locked and ctypes.CDLL(None).mlock(ctypes.byref(weights), ctypes.c_size_t(len(mapped)))
print("failed" if failed else "after", flush=True); sys.stdin.readline()
"""


def growth(weights: Path, mode: str, size: int) -> tuple[int, int]:
    """By what a process grows that maps a file, and has so many MiB of its own: all of it, and what stays."""
    words = [sys.executable, "-c", MAPS, str(weights), mode, str(size)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        before = usage(process.pid)
        process.stdin.write("\n")
        state, after = process.stdout.readline(), usage(process.pid)
        process.stdin.write("\n")
    if state == "failed\n":
        pytest.skip("needs to lock 6 MiB of memory")
    return after.resident_bytes - before.resident_bytes, after.unreclaimable_bytes - before.unreclaimable_bytes


def test_pages_of_files_can_be_reclaimed_and_others_not(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * (64 << 20))
    resident, unreclaimable = growth(tmp_path / "weights", "unlocked", 32)
    assert resident > 90 << 20
    assert 30 << 20 < unreclaimable < 60 << 20


def test_locked_pages_of_files_cannot_be_reclaimed(tmp_path: Path) -> None:
    """As llama.cpp maps weights with --mlock. The memory lock of a user is often limited to 8 MiB."""
    (tmp_path / "weights").write_bytes(b"x" * (6 << 20))
    _, unreclaimable = growth(tmp_path / "weights", "locked", 1)
    assert unreclaimable > 5 << 20


@pytest.mark.parametrize("pidfd", [True, False])
def test_the_end_of_a_process_is_noticed(
    sleeper: "subprocess.Popen[bytes]", pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")

    async def play() -> None:
        ended = asyncio.Event()
        watch = ExitWatch(sleeper.pid, ended.set)
        watch.send(signal.SIGTERM)
        await asyncio.to_thread(sleeper.wait)
        await asyncio.wait_for(ended.wait(), 10)
        watch.send(signal.SIGTERM)

    asyncio.run(play())


def test_a_listener_that_came_over_a_socket_is_not_inherited_by_a_replica(tmp_path: Path) -> None:
    leak = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leak, True)

    async def play() -> None:
        async with Stage(tmp_path, python=program(tmp_path, "ls -l /proc/$$/fd; exit 3")) as stage:
            replica = stage.supervisor.launch(launch())
            await stage.until("exited")
            assert f"-> {tmp_path}\n" not in Path(replica.log).read_text()

    try:
        assert leak in {descriptor for _, descriptor in closing_inheritable()}
        asyncio.run(play())
    finally:
        os.close(leak)
