"""Checkpoints of processes that use a GPU, through a compiled stand-in of the driver's library."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cuda import stand_in

from pilotlight.targets.local.supervisor.parking import cuda_checkpoint
from pilotlight.targets.local.supervisor.parking.checkpoint_process import CheckpointProcess
from pilotlight.targets.local.supervisor.parking.cuda_checkpoint import (
    CheckpointError,
    Driver,
    DriverMissing,
    LockTimeout,
    NoContext,
    NotPermitted,
    OutOfMemory,
    State,
    missing_privilege,
)

ROOT = Path(__file__).resolve().parents[6]
SIZE = 1000
NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 600, 800, 801
CHILD = f"""
import sys
from tests.cuda.stand_in import GpuMemory
memory = GpuMemory({SIZE})
print("up", flush=True)
for line in sys.stdin:
    print(memory.read().decode(), flush=True)
"""


class Process:
    """A process that uses the GPU and reads its memory for each line."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/platform"}
        pipe = subprocess.PIPE
        self._child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True, env=env)
        self.pid = self._child.pid
        assert self.line() == "up"

    def line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def ask(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def end(self) -> None:
        self._child.kill()
        with self._child:  # closes its pipes
            pass


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in stand_in.variables(tmp_path / "gpu", memory=2 * SIZE).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "gpu"


@contextmanager
def processes(number: int = 1) -> Iterator[list[Process]]:
    started = [Process() for _ in range(number)]
    try:
        yield started
    finally:
        for each in started:
            each.end()


def used(gpu: Path, process: Process) -> int:
    return int((gpu / str(process.pid)).read_text())


def test_all_processes_of_a_replica_leave_the_gpu_and_come_back_as_they_were(gpu: Path) -> None:
    driver = Driver()
    with processes(2) as found:
        pids = [os.getpid(), *(each.pid for each in found)]  # this one does not use the GPU
        seconds = cuda_checkpoint.checkpoint_all(driver, pids)
        assert {*seconds} == {"lock", "checkpoint"}
        assert [used(gpu, each) for each in found] == [0, 0]
        found[0].ask()
        assert driver.state(found[0].pid) is State.CHECKPOINTED

        cuda_checkpoint.restore_all(driver, pids)
        assert [used(gpu, each) for each in found] == [SIZE, SIZE]
        assert found[0].line() == "weights"  # the call waited for the restore


def test_a_second_checkpoint_or_restore_changes_nothing(gpu: Path) -> None:
    driver = Driver()
    with processes() as (process,):
        for _ in range(2):
            cuda_checkpoint.checkpoint_all(driver, [process.pid])
        for _ in range(2):
            cuda_checkpoint.restore_all(driver, [process.pid])
        assert (driver.state(process.pid), used(gpu, process)) == (State.RUNNING, SIZE)


@pytest.mark.parametrize(
    ("function", "code", "kind", "name"),
    [
        ("Checkpoint", NOT_SUPPORTED, cuda_checkpoint.NotSupported, "CUDA_ERROR_NOT_SUPPORTED"),
        ("Lock", NOT_READY, LockTimeout, "CUDA_ERROR_NOT_READY"),
        ("Lock", NOT_PERMITTED, NotPermitted, "CUDA_ERROR_NOT_PERMITTED"),
        ("Checkpoint", 999, CheckpointError, "CUDA error 999"),
    ],
)
def test_a_refused_checkpoint_leaves_all_processes_running(
    gpu: Path, function: str, code: int, kind: type[CheckpointError], name: str
) -> None:
    stand_in.fail(gpu, function, code)
    driver = Driver()
    with processes(2) as found:
        pids = [each.pid for each in found]
        with pytest.raises(kind, match=f"cuCheckpointProcess{function} of process {pids[0]}: {name}") as refused:
            cuda_checkpoint.checkpoint_all(driver, pids)
        assert refused.value.name == name
        assert [driver.state(pid) for pid in pids] == [State.RUNNING, State.RUNNING]


def test_a_restore_without_memory_names_the_error_of_the_driver(gpu: Path) -> None:
    driver = Driver()
    with processes() as (process,):
        cuda_checkpoint.checkpoint_all(driver, [process.pid])
        with processes(2), pytest.raises(OutOfMemory, match="CUDA_ERROR_OUT_OF_MEMORY"):
            cuda_checkpoint.restore_all(driver, [process.pid])


def test_a_replica_without_a_context_cannot_be_checkpointed(gpu: Path) -> None:
    with pytest.raises(NoContext, match="no process of it uses CUDA"):
        cuda_checkpoint.checkpoint_all(Driver(), [os.getpid()])


def test_a_machine_without_a_driver_or_with_an_old_one_says_so(gpu: Path, tmp_path: Path) -> None:
    with pytest.raises(DriverMissing, match="no NVIDIA driver: "):
        Driver(str(tmp_path / "none.so"))
    (gpu / "version").write_text("12040")
    with pytest.raises(DriverMissing, match=r"supports CUDA 12\.4, checkpoints need 12\.8"):
        Driver()


@pytest.mark.parametrize(
    ("capabilities", "scope", "problem"),
    [
        ("000001ffffffffff", "1", ""),
        ("0000000000000000", "0", "CAP_SYS_PTRACE is missing"),
        ("0000000000080000", "3", "kernel.yama.ptrace_scope = 3"),
    ],
)
def test_privileges_that_are_missing_are_named(tmp_path: Path, capabilities: str, scope: str, problem: str) -> None:
    for path, text in (
        ("self/status", f"Name:\tx\nCapEff:\t{capabilities}\n"),
        ("sys/kernel/yama/ptrace_scope", scope),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    found = missing_privilege(tmp_path)
    assert (found is None) if not problem else str(found).startswith(problem)


def test_the_helper_process_calls_the_driver_and_reports_its_errors(gpu: Path) -> None:
    async def play() -> None:
        helper = CheckpointProcess()
        with processes() as (process,):
            seconds = await helper.call("checkpoint", [process.pid])
            assert seconds["total"] >= seconds["checkpoint"] > 0
            await helper.call("restore", [process.pid])
            assert used(gpu, process) == SIZE
            stand_in.fail(gpu, "Checkpoint", NOT_SUPPORTED)
            with pytest.raises(cuda_checkpoint.NotSupported, match="CUDA_ERROR_NOT_SUPPORTED"):
                await helper.call("checkpoint", [process.pid])
        await helper.close()

    asyncio.run(play())


def test_a_call_that_is_given_up_is_finished_before_the_next_one(gpu: Path) -> None:
    async def play() -> None:
        helper = CheckpointProcess()
        with processes() as (process,):
            given_up = asyncio.ensure_future(helper.call("checkpoint", [process.pid]))
            await asyncio.sleep(0)
            await helper.call("restore", [process.pid])
            given_up.cancel()
            await helper.call("checkpoint", [process.pid])
            late = asyncio.ensure_future(helper.call("restore", [process.pid]))
            await asyncio.sleep(0)
            late.cancel()
            await helper.call("checkpoint", [process.pid])
            assert Driver().state(process.pid) is State.CHECKPOINTED
        await helper.close()

    asyncio.run(play())


def test_a_helper_process_that_died_is_started_again(gpu: Path) -> None:
    async def play() -> None:
        helper = CheckpointProcess()
        with processes() as (process,):
            await helper.call("restore", [process.pid])
            assert helper._process is not None
            helper._process.kill()
            with pytest.raises(CheckpointError, match="the helper process that calls the driver has exited"):
                await helper.call("restore", [process.pid])
            await helper._process.wait()
            await helper.call("checkpoint", [process.pid])
            assert used(gpu, process) == 0
        await helper.close()

    asyncio.run(play())
