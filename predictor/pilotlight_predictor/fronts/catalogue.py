"""Catalogue: what the fronts have to know of the models in the model process, sent whenever it changes.

The model process describes its registry; a front builds a registry of the same models, whose versions have executors
that pass requests on.
"""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from msgspec import Struct

from pilotlight_predictor.backends.base import Adapters
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.fronts.remote_executor import ModelLink, RemoteExecutor
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.registry import ModelEntry, VersionStatus
from pilotlight_predictor.repository.layout import ModelSource
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import ServerState

STARTING = (ServerState.INITIALIZING, ServerState.LOADING)


class VersionDescription(Struct):
    loaded: int
    config: ModelConfig
    version: int
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    labels: Mapping[str, Sequence[str]]
    instances: int
    parked: bool
    verified: bool
    warmup_failure: str
    example: InferRequest | None
    v1_verbs: frozenset[str]
    chats: bool
    adapters: dict[str, str] | None  # None: it takes none
    problem: str

    @classmethod
    def of(cls, served: ModelVersion) -> "VersionDescription":
        return cls(
            served.loaded, served.config, served.version, served.inputs, served.outputs, served.labels,
            served.instances, served.parked, served.verified, served.warmup_failure, served.example, served.v1_verbs,
            served.chats, dict(served.adapter_paths) if served.adapters else None, served.executor.problem,
        )  # fmt: skip


class EntryDescription(Struct):
    source: ModelSource
    states: dict[int, VersionStatus]
    reason: str
    loading: bool
    versions: list[VersionDescription]


class Catalogue(Struct):
    pid: int
    state: ServerState
    reason: str
    required: tuple[str, ...]
    scanned: bool
    entries: list[EntryDescription]


def catalogue_of(server: Server) -> Catalogue:
    entries = [
        EntryDescription(
            entry.source, entry.states, entry.reason, entry.loading,
            [VersionDescription.of(served) for served in entry.serving.values()],
        )
        for entry in server.registry.entries()
    ]  # fmt: skip
    lifecycle, registry = server.lifecycle, server.registry
    return Catalogue(os.getpid(), lifecycle.state, lifecycle.reason, server.control.required, registry.scanned, entries)


class Publisher:
    """The model process's side: sends the catalogue if it has changed."""

    def __init__(self, server: Server, send: Callable[[bytes, bool], None]) -> None:
        self._server, self._send = server, send
        self._last: Any = None

    def publish(self) -> None:
        catalogue = catalogue_of(self._server)
        changing = [
            (
                entry.source.name, entry.reason, entry.loading,
                [(version, status.state, status.reason) for version, status in entry.states.items()],
                [(v.loaded, v.parked, v.verified, v.problem, v.adapters) for v in entry.versions],
            )
            for entry in catalogue.entries
        ]  # fmt: skip
        key = (catalogue.state, catalogue.reason, catalogue.required, catalogue.scanned, changing)
        if key != self._last:
            self._last = key
            self._send(pickle.dumps(catalogue), catalogue.state is ServerState.READY)


class Mirror:
    """A front's side: its registry follows the catalogue."""

    def __init__(self, server: Server, link: ModelLink) -> None:
        self._server, self._link = server, link
        self._versions: dict[tuple[int, str, int], ModelVersion] = {}  # by process, name and load

    def apply(self, data: bytes) -> ServerState:
        """Apply a catalogue of the model process; return the state of that process. Raise LoadFailed if it failed."""
        catalogue: Catalogue = pickle.loads(data)  # noqa: S301 - from a process of this server
        if catalogue.state in STARTING and self._link.describes_another(catalogue.pid):
            return catalogue.state  # requests are held until the new process serves what the last one did
        if catalogue.state is ServerState.FAILED and not catalogue.scanned:
            raise LoadFailed(catalogue.reason)
        if catalogue.scanned:
            versions: dict[tuple[int, str, int], ModelVersion] = {}
            counted = self._counted()
            self._server.registry.mirror([self._entry(catalogue.pid, entry, versions) for entry in catalogue.entries])
            self._versions = versions
            for name, version in counted - self._counted():
                self._server.metrics.drop(name, version)
            self._server.control.required = catalogue.required
            self._link.described_by(catalogue.pid)
        return catalogue.state

    def _counted(self) -> set[tuple[str, int]]:
        """Return the versions and adapters that metrics are of, as in one process."""
        entries, serving = self._server.registry.entries(), self._server.registry.serving()
        versions = {(entry.source.name, version) for entry in entries for version in entry.states}
        return versions | {(name, served.version) for served in serving for name in served.adapter_paths}

    def _entry(
        self, pid: int, described: EntryDescription, versions: dict[tuple[int, str, int], ModelVersion]
    ) -> ModelEntry:
        entry = ModelEntry(described.source, reason=described.reason, loading=described.loading)
        entry.states = described.states
        for each in described.versions:
            key = (pid, each.config.name, each.loaded)
            served = versions[key] = self._versions.get(key) or self._version(each)
            served.parked, served.answered_warmup = each.parked, each.verified
            served.adapters = ()
            if each.adapters is not None:
                served.adapters = [cast(Adapters, SimpleNamespace(paths=each.adapters))]
            executor = served.executor
            assert isinstance(executor, RemoteExecutor)
            executor.described_problem = each.problem
            entry.serving[each.version] = served
        return entry

    def _version(self, each: VersionDescription) -> ModelVersion:
        server, config = self._server, each.config
        cache = server.registry.cache if config.response_cache else None
        stats = server.metrics.model(config.name, each.version, config.metric_tags, cache is not None)
        executor = RemoteExecutor(self._link, each.version, each.loaded)
        served = ModelVersion(config, each.version, executor, stats, (each.inputs, each.outputs), each.labels, cache)
        served.instances, served.warmup_failure = each.instances, each.warmup_failure
        served.example, served.v1_verbs, served.chats = each.example, each.v1_verbs, each.chats
        return served
