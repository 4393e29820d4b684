"""Records of the store. Manifests are decoded on access, so that a thousand idle services use little memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import json

from pilotlight.targets.target import Key

Json = Any
Manifests = list[dict[str, Json]]


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
    """Stored revision. `manifests` are its workload and the objects that it needs to be interpreted again."""

    namespace: str
    service: str
    workload: str
    name: str
    generation: int  # of the last release that contained it
    created_at: str
    first_ready_at: str  # empty: never
    failed: str  # why it cannot be started; empty: it can
    encoded: bytes = field(repr=False)

    @property
    def manifests(self) -> Manifests:
        return json.decode(self.encoded, type=Manifests)
