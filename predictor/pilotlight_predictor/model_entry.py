"""State of one model: serving versions, the status of every version, and why one is unavailable.

Written by the registry; read by requests, the repository index and readiness.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from pilotlight_predictor.errors import NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.served import ModelVersion

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"
PARKED: Final = "PARKED"  # serves after its weights are restored
UNLOADED: Final = "unloaded"
RETIRED: Final = "unloaded by the version policy"
_REMOVED: Final = frozenset({UNLOADED, RETIRED})  # NotFound, not NotReady: retrying would not help a client


class VersionStatus(Struct):
    """Status of a version. READY has a reason only if the last reload failed."""

    state: str
    reason: str = ""


class ModelEntry(Struct):
    """A model: its source, its serving versions, and the status of all versions."""

    source: ModelSource
    serving: dict[int, ModelVersion] = field(default_factory=dict)
    states: dict[int, VersionStatus] = field(default_factory=dict)
    reason: str = ""  # why the model as a whole cannot be loaded
    loading: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        return bool(self.serving) and all(served.executor.alive for served in self.serving.values())

    @property
    def unloaded(self) -> bool:
        """Not requested, or unloaded on request: not a failure."""
        return not self.serving and not self.loading and self.reason == UNLOADED

    def problem(self) -> str:
        """Return why the model does not serve, in one sentence."""
        if self.serving:
            return next((p for s in self.serving.values() if (p := s.executor.problem)), "")
        if self.loading:
            return "loading"
        return self.reason or next((status.reason for status in self.states.values() if status.reason), "loading")

    def mark(self, version: int, state: str, reason: str = "") -> VersionStatus:
        self.states[version] = status = VersionStatus(state, reason)
        return status

    def mark_load_failed(self, version: int, reason: str) -> None:
        """Record a failed load; a version that served before stays READY, with the reason."""
        if version in self.serving:
            self.mark(version, READY, f"the last reload failed, what was loaded before goes on: {reason}")
        else:
            self.mark(version, UNAVAILABLE, reason)

    def index_rows(self) -> Iterator[dict[str, str]]:
        """Yield the model's rows of the repository index."""
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

    def unavailable_error(self, version: int) -> PredictorError:
        """Return the error for a request of a version that does not serve."""
        name, status = self.source.name, self.states.get(version)
        if version != NEWEST and status is not None and status.reason not in _REMOVED:
            reason = f": {status.reason}" if status.reason else ""
            return NotReady(f"Request for unknown model: '{name}' version {version} is not at ready state{reason}")
        if self.loading:
            return NotReady(f"'{name}' is loading")
        if version != NEWEST:
            reason = f": {status.reason}" if status is not None else ""
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found{reason}")
        reason = self.problem()
        return NotFound(
            f"Request for unknown model: '{name}' has no available versions" + (f": {reason}" if reason else "")
        )
