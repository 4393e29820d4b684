"""What comes back out of the store. Manifests stay bytes until somebody asks: a thousand services at rest are small."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec import json

from pilotlight.targets.target import Key

Json = Any
Manifests = list[dict[str, Json]]


def seconds_between(earlier: str, later: str) -> float:
    """Of two UTC instants; a clock that was set back adds nothing."""
    return max(0.0, (_instant(later) - _instant(earlier)).total_seconds())


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredService:
    namespace: str
    name: str
    generation: int
    document: str
    created_at: str
    updated_at: str
    deleting: bool
    encoded: bytes = field(repr=False)  # manifests, as JSON
    catalogue: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)  # by workload

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def manifests(self) -> Manifests:
        return json.decode(self.encoded, type=Manifests)


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """`manifests` are those that this revision can be interpreted from again: its workload and what belongs to it."""

    namespace: str
    service: str
    workload: str
    name: str
    generation: int  # the last release that it was part of
    created_at: str
    first_ready_at: str  # empty: it never was
    failed: str  # why it cannot be started; empty: it can
    age_s: float  # how old it was at `age_at`
    age_at: str
    encoded: bytes = field(repr=False)

    @property
    def manifests(self) -> Manifests:
        return json.decode(self.encoded, type=Manifests)

    def age(self, now: str) -> float:
        """Seconds since it was created, as far as clocks can be believed: what was counted, and the time since."""
        return self.age_s + seconds_between(self.age_at, now)
