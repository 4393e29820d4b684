"""Checkpoints of CUDA processes by the driver (libcuda, CUDA 12.8 and later), through ctypes.

The driver moves all GPU memory and the CUDA context of a process into its host memory, and back. The process needs no
code for it: its CUDA calls block until it is restored, its other code runs. `checkpoint_process.py` alone initialises
CUDA.

    CheckpointError            the driver refuses; `name` is its name of the error
    ├── DriverMissing          no libcuda on this machine, or one without these functions
    ├── NotPermitted           root or CAP_SYS_PTRACE is needed
    ├── NotSupported           MIG, MPS, UVM, memory shared with another process
    ├── OutOfMemory            of the GPU, on restore; the driver cannot restore such a process later either
    ├── LockTimeout            its work on the GPU has not ended
    └── NoContext              no process of the replica uses CUDA
"""

import ctypes
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_uint32, c_uint64
from enum import IntEnum
from pathlib import Path
from time import perf_counter
from typing import Any, Final

ENV_LIBCUDA: Final = "PILOTLIGHT_LIBCUDA"  # path of the library
LIBRARY: Final = "libcuda.so.1"
FIRST_VERSION: Final = 12080
LOCK_TIMEOUT_MS: Final = 10_000
CAP_SYS_PTRACE: Final = 19
NO_ATTACH: Final = 3  # of yama's ptrace_scope: no process may attach to another one
PRIVILEGE: Final = "run the platform as root, or with the capability CAP_SYS_PTRACE"
FUNCTIONS: Final = tuple(
    f"cuCheckpointProcess{name}" for name in ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
)


class State(IntEnum):
    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class CheckpointError(Exception):
    """`name` is the driver's name of the error, `hint` what helps."""

    hint = ""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class DriverMissing(CheckpointError):
    hint = "install NVIDIA's driver 570 or later"


class NotPermitted(CheckpointError):
    hint = PRIVILEGE


class NotSupported(CheckpointError):
    pass


class OutOfMemory(CheckpointError):
    pass


class LockTimeout(CheckpointError):
    pass


class NoContext(CheckpointError):
    pass


_ERRORS: Final[Mapping[str, type[CheckpointError]]] = {
    "CUDA_ERROR_OUT_OF_MEMORY": OutOfMemory,
    "CUDA_ERROR_NOT_PERMITTED": NotPermitted,
    "CUDA_ERROR_NOT_SUPPORTED": NotSupported,
    "CUDA_ERROR_NOT_READY": LockTimeout,
    "CUDA_ERROR_TIMEOUT": LockTimeout,
}
# Answers of GetState for a process that has loaded the library and has no context.
_WITHOUT_CONTEXT: Final = frozenset({"CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_INITIALIZED"})


class Driver:
    """The loaded library. Raise DriverMissing without it, or if it is older than 12.8."""

    def __init__(self, path: str = "") -> None:
        try:
            self._cuda = ctypes.CDLL(path or os.environ.get(ENV_LIBCUDA) or LIBRARY)
            version = c_int()
            self._cuda.cuDriverGetVersion(byref(version))
        except (OSError, AttributeError) as error:
            raise DriverMissing(f"no NVIDIA driver: {error}") from None
        self.version = version.value
        missing = [name for name in FUNCTIONS if not hasattr(self._cuda, name)]
        if self.version < FIRST_VERSION or missing:
            raise DriverMissing(f"the NVIDIA driver supports CUDA {self.cuda_version}, checkpoints need 12.8")

    @property
    def cuda_version(self) -> str:
        return f"{self.version // 1000}.{self.version % 1000 // 10}"

    def initialize(self) -> None:
        """Initialise CUDA in this process, without a context: no memory of a GPU is used."""
        self._check(self._cuda.cuInit(0), "cuInit", 0)

    def state(self, pid: int) -> State:
        state = c_int()
        self._call("GetState", pid, byref(state))
        return State(state.value) if state.value in State.__members__.values() else State.FAILED

    def lock(self, pid: int) -> None:
        """Wait for the work of a process on its GPU, and block its further CUDA calls."""
        self._call("Lock", pid, (c_uint32 * 16)(LOCK_TIMEOUT_MS))

    def checkpoint(self, pid: int) -> None:
        self._call("Checkpoint", pid, (c_uint64 * 8)())

    def restore(self, pid: int) -> None:
        self._call("Restore", pid, (c_uint64 * 8)())

    def unlock(self, pid: int) -> None:
        self._call("Unlock", pid, (c_uint64 * 8)())

    def _call(self, function: str, pid: int, argument: Any) -> None:
        name = f"cuCheckpointProcess{function}"
        self._check(getattr(self._cuda, name)(c_int(pid), argument), name, pid)

    def _check(self, code: int, function: str, pid: int) -> None:
        if code:
            text = c_char_p()
            self._cuda.cuGetErrorName(code, byref(text))
            name = (text.value or f"CUDA error {code}".encode()).decode()
            of = f" of process {pid}" if pid else ""
            raise _ERRORS.get(name, CheckpointError)(f"{function}{of}: {name}", name)


def cuda_processes(driver: Driver, pids: Iterable[int]) -> dict[int, State]:
    """Return the processes that have a CUDA context. Raise NotPermitted if they cannot be inspected."""
    found = {}
    for pid in pids:
        if _loads_cuda(pid):
            try:
                found[pid] = driver.state(pid)
            except CheckpointError as error:
                if error.name not in _WITHOUT_CONTEXT:
                    raise
    return found


def _loads_cuda(pid: int) -> bool:
    """Whether the driver's library is in the process: calling the driver for any other one takes up to seconds."""
    try:
        return "/libcuda.so" in Path(f"/proc/{pid}/maps").read_text()
    except PermissionError:
        raise NotPermitted(f"process {pid} may not be inspected") from None
    except OSError:  # it has exited
        return False


Seconds = dict[str, float]


def checkpoint_all(driver: Driver, pids: Iterable[int]) -> Seconds:
    """Take all processes of a replica off the GPU, or none of them. Return the seconds of each step."""
    seconds: Seconds = {"lock": 0.0, "checkpoint": 0.0}
    states = cuda_processes(driver, pids)
    if not states:
        raise NoContext("no process of it uses CUDA")
    if State.FAILED in states.values():
        raise CheckpointError("the driver could not restore a process of it before")
    running = [pid for pid, state in states.items() if state is State.RUNNING]
    remaining = [pid for pid, state in states.items() if state is not State.CHECKPOINTED]
    try:
        _timed(seconds, "lock", driver.lock, running)
        _timed(seconds, "checkpoint", driver.checkpoint, remaining)
    except CheckpointError:
        with suppress(CheckpointError):
            restore_all(driver, states)
        raise
    return seconds


def restore_all(driver: Driver, pids: Iterable[int]) -> Seconds:
    """Put all processes of a replica back on the GPU; those that run stay as they are."""
    seconds: Seconds = {"restore": 0.0, "unlock": 0.0}
    states = cuda_processes(driver, pids)
    if State.FAILED in states.values():
        raise CheckpointError("the driver could not restore a process of it before")
    _timed(seconds, "restore", driver.restore, [pid for pid, state in states.items() if state is State.CHECKPOINTED])
    _timed(seconds, "unlock", driver.unlock, [pid for pid, state in states.items() if state is not State.RUNNING])
    return seconds


def _timed(seconds: Seconds, name: str, call: Any, pids: Iterable[int]) -> None:
    began = perf_counter()
    try:
        for pid in pids:
            call(pid)
    finally:
        seconds[name] = perf_counter() - began


def unavailable() -> CheckpointError | None:
    """Return why this process cannot checkpoint others, by driver and privileges; None: it can."""
    try:
        Driver()
    except DriverMissing as error:
        return error
    return missing_privilege(Path("/proc"))


def missing_privilege(proc: Path) -> NotPermitted | None:
    """Return the privilege that this process lacks to attach to others; None: none, or not known."""
    with suppress(OSError, ValueError):
        rows = dict(line.split(":", 1) for line in (proc / "self/status").read_text().splitlines() if ":" in line)
        if not int(rows["CapEff"], 16) >> CAP_SYS_PTRACE & 1:
            return NotPermitted("CAP_SYS_PTRACE is missing")
    with suppress(OSError, ValueError):
        if int((proc / "sys/kernel/yama/ptrace_scope").read_text()) == NO_ATTACH:
            return NotPermitted("kernel.yama.ptrace_scope = 3 forbids it until the next boot")
    return None
