"""What the server is doing, from exec to exit: states, cold-start phases, readiness. Decisions only.

initializing → loading → ready | failed(reason) → stopping
"""

import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter
from typing import NamedTuple


class State(Enum):
    INITIALIZING = "initializing"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


class Verdict(NamedTuple):
    ready: bool
    state: str
    reason: str


class Lifecycle:
    """One per process. `phases` holds how long each step of the cold start took, and in `total` exec to ready.

    boot, listen and import (of the server itself) follow one another. fetch, the import of the model's runtime, load
    and warmup are those of the model that was ready last; import and fetch overlap, so the sum may exceed the total.
    """

    def __init__(self, boot_seconds: float) -> None:
        self._origin = perf_counter() - boot_seconds
        self.state = State.INITIALIZING
        self.reason = ""
        self.phases: dict[str, float] = {"boot": boot_seconds}
        self._last = boot_seconds

    def elapsed(self) -> float:
        """Seconds since exec."""
        return perf_counter() - self._origin

    def finish_phase(self, name: str) -> None:
        """The phase is what has passed since the last one ended."""
        now = self.elapsed()
        self.phases[name] = now - self._last
        self._last = now

    def note_loads(self, fetch_s: float, ahead_s: float, loads: Iterable[Mapping[str, float]]) -> None:
        """What the models took: the fetch of all, an import that ran beside it, and the slowest load's phases."""
        slowest = max(loads, key=lambda phases: phases.get("total", 0.0), default={})
        self.phases["import"] = self.phases.get("import", 0.0) + max(ahead_s, slowest.get("import", 0.0))
        self.phases["fetch"] = fetch_s
        self.phases["load"] = slowest.get("load", 0.0)
        self.phases["warmup"] = slowest.get("warmup", 0.0)
        self.phases["total"] = self.elapsed()

    def move(self, state: State, reason: str = "") -> None:
        """A server that stops stays stopping, whatever loads still end."""
        if self.state is not State.STOPPING:
            self.state, self.reason = state, reason


def judge(
    lifecycle: Lifecycle,
    required: Iterable[str],
    is_ready: Callable[[str], bool],
    reason: Callable[[str], str],
    *,
    may_be_empty: bool,
) -> Verdict:
    """Ready once every required model has answered its warm-up; models that load later do not count.

    With no model at all a server is ready only where models come by call (explicit mode): a server that found an
    empty repository by mistake must not take traffic.
    """
    state = lifecycle.state
    if state is not State.READY:
        return Verdict(False, state.value, lifecycle.reason)
    names = list(required)
    if not names and not may_be_empty:
        return Verdict(False, State.FAILED.value, "no model was found to serve")
    for name in names:
        if not is_ready(name):
            return Verdict(False, State.FAILED.value, f"model '{name}': {reason(name)}")
    return Verdict(True, State.READY.value, "")


def seconds_since_exec() -> float:
    """How long this process has existed, by the kernel's clock: what the interpreter itself took to start."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            start_ticks = int(stat.read().rpartition(b") ")[2].split()[19])
        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
