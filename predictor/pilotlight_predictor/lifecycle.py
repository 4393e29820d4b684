"""What the server is doing, from exec to exit: states, cold-start phases, readiness. Decisions only.

initializing → loading → ready | failed(reason) → stopping
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
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
    `now` and `executed`, the moment of exec, are of the caller's clock.
    """

    def __init__(self, executed: float, now: float) -> None:
        self._executed = executed
        self.state = State.INITIALIZING
        self.reason = ""
        self.phases: dict[str, float] = {"boot": now - executed}
        self._last = now

    def finish_phase(self, name: str, now: float) -> None:
        """The phase is what has passed since the last one ended."""
        self.phases[name] = now - self._last
        self._last = now

    def note_loads(self, fetch_s: float, ahead_s: float, loads: Iterable[Mapping[str, float]], now: float) -> None:
        """What the models took: the fetch of all, an import that ran beside it, and the slowest load's phases."""
        slowest = max(loads, key=lambda phases: phases.get("total", 0.0), default={})
        self.phases["import"] = self.phases.get("import", 0.0) + max(ahead_s, slowest.get("import", 0.0))
        self.phases["fetch"] = fetch_s
        self.phases["load"] = slowest.get("load", 0.0)
        self.phases["warmup"] = slowest.get("warmup", 0.0)
        self.phases["total"] = now - self._executed

    def uptime(self, now: float) -> float:
        return now - self._executed

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
