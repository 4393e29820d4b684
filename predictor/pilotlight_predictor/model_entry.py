"""What is known of one model: versions that serve, the state of each version, and why one cannot be had.

The registry changes it; requests, the repository index and readiness read it.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from pilotlight_predictor.errors import NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.served import ServedVersion

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
PARKED: Final = "PARKED"  # serves, after a wake
UNLOADED: Final = "unloaded"
RETIRED: Final = "unloaded by the version policy"
_GONE: Final = frozenset({UNLOADED, RETIRED})  # not there for clients, who would wait in vain


class Status(Struct):
    """A version that is READY has a reason only when it could not be replaced by what the repository holds now."""

    state: str
    reason: str = ""


class Entry(Struct):
    """One model by its name: where it lies, which of its versions serve, and what became of the others."""

    source: ModelSource
    serving: dict[int, ServedVersion] = field(default_factory=dict)
    states: dict[int, Status] = field(default_factory=dict)
    reason: str = ""  # why the model as a whole cannot be loaded
    loading: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        return bool(self.serving) and all(served.executor.alive for served in self.serving.values())

    @property
    def unloaded(self) -> bool:
        """Nobody asked for it, or somebody asked it away: no fault."""
        return not self.serving and not self.loading and self.reason == UNLOADED

    def why(self) -> str:
        """Why the model does not serve, in one sentence."""
        if self.serving:
            return next((p for s in self.serving.values() if (p := s.executor.problem)), "")
        if self.loading:
            return "loading"
        return self.reason or next((status.reason for status in self.states.values() if status.reason), "loading")

    def mark(self, version: int, state: str, reason: str = "") -> Status:
        self.states[version] = status = Status(state, reason)
        return status

    def blame(self, version: int, reason: str) -> None:
        """Its load failed: what served before goes on, and says so."""
        if version in self.serving:
            self.mark(version, READY, f"the last reload failed, what was loaded before goes on: {reason}")
        else:
            self.mark(version, UNAVAILABLE, reason)

    def rows(self) -> Iterator[dict[str, str]]:
        """The model's part of the repository index."""
        if not self.states:
            state = LOADING if self.loading else UNAVAILABLE
            yield {"name": self.source.name, "state": state, "reason": "" if self.loading else self.reason}
        for version, status in sorted(self.states.items()):
            served = self.serving.get(version)
            problem = served.executor.problem if served is not None else ""
            state, reason = (UNAVAILABLE, problem) if problem else (status.state, status.reason)
            if state == READY and served is not None and served.parked:
                state = PARKED
            yield {"name": self.source.name, "version": str(version), "state": state, "reason": reason}

    def absent(self, version: int) -> PredictorError:
        """Why this version cannot be had."""
        name, status = self.source.name, self.states.get(version)
        if version != NEWEST and status is not None and status.reason not in _GONE:
            reason = f": {status.reason}" if status.reason else ""
            return NotReady(f"Request for unknown model: '{name}' version {version} is not at ready state{reason}")
        if self.loading:
            return NotReady(f"'{name}' is loading")
        if version != NEWEST:
            reason = f": {status.reason}" if status is not None else ""
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found{reason}")
        reason = self.why()
        return NotFound(
            f"Request for unknown model: '{name}' has no available versions" + (f": {reason}" if reason else "")
        )
