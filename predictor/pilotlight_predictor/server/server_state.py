"""Server lifecycle: states, cold-start phases, readiness. Pure.

initializing → loading → ready | failed(reason) → stopping
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class ServerState(Enum):
    INITIALIZING = "initializing"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


class Readiness(NamedTuple):
    ready: bool
    state: str
    reason: str


class Lifecycle:
    """State of this process. `phases`: duration of each phase of the cold start, `total` from exec to ready.

    boot, listen and import (of the server itself) are consecutive. fetch, the import of the model's runtime, load and
    warmup are those of the slowest model; import and fetch overlap, so the sum may exceed the total. `now` and
    `executed`, the time of exec, are of the caller's clock.
    """

    def __init__(self, executed: float, now: float) -> None:
        self._executed = executed
        self.state = ServerState.INITIALIZING
        self.reason = ""
        self.phases: dict[str, float] = {"boot": now - executed}
        self._last = now

    def finish_phase(self, name: str, now: float) -> None:
        """Record a phase that began with the end of the last one."""
        self.phases[name] = now - self._last
        self._last = now

    def record_loads(self, fetch_s: float, ahead_s: float, loads: Iterable[Mapping[str, float]], now: float) -> None:
        """Record the phases of the models: fetch of all, import during the fetch, and the slowest load."""
        slowest = max(loads, key=lambda phases: phases.get("total", 0.0), default={})
        self.phases["import"] = self.phases.get("import", 0.0) + max(ahead_s, slowest.get("import", 0.0))
        self.phases["fetch"] = fetch_s
        self.phases["load"] = slowest.get("load", 0.0)
        self.phases["warmup"] = slowest.get("warmup", 0.0)
        self.phases["total"] = now - self._executed

    def uptime(self, now: float) -> float:
        return now - self._executed

    def move(self, state: ServerState, reason: str = "") -> None:
        """Change the state; STOPPING is final."""
        if self.state is not ServerState.STOPPING:
            self.state, self.reason = state, reason


def assess_readiness(
    lifecycle: Lifecycle,
    required: Iterable[str],
    is_ready: Callable[[str], bool],
    reason: Callable[[str], str],
    *,
    may_be_empty: bool,
) -> Readiness:
    """Ready once every required model has passed its warm-up; models loaded later do not count.

    Without any model a server is ready only in explicit mode: one that found an empty repository by mistake must not
    receive traffic.
    """
    state = lifecycle.state
    if state is not ServerState.READY:
        return Readiness(False, state.value, lifecycle.reason)
    names = list(required)
    if not names and not may_be_empty:
        return Readiness(False, ServerState.FAILED.value, "no model found")
    for name in names:
        if not is_ready(name):
            return Readiness(False, ServerState.FAILED.value, f"model '{name}': {reason(name)}")
    return Readiness(True, ServerState.READY.value, "")
