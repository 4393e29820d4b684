"""The models that are served, by name and version: lookup for requests, load and unload for operators.

Lives on the event loop; loading itself happens in threads (loader.py). A new version is built beside the old one and
takes its place in one step, so a reload never leaves a gap and a failed one leaves the old version serving.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pilotlight_predictor.backends.ensemble import Ensemble
from pilotlight_predictor.batcher import policy_of
from pilotlight_predictor.errors import LoadFailed, NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import NEWEST, Done, InferRequest
from pilotlight_predictor.loader import Loaded, load_version
from pilotlight_predictor.metrics import Metrics, ModelState, QueueDepth
from pilotlight_predictor.repository.complete import metadata_specs
from pilotlight_predictor.repository.layout import ModelSource, check_source
from pilotlight_predictor.repository.model_config import ModelConfig, VersionPolicy
from pilotlight_predictor.repository.versions import choose_versions
from pilotlight_predictor.response_cache import ResponseCache
from pilotlight_predictor.scheduler import Scheduler
from pilotlight_predictor.served import Executor, ServedVersion, Ticket
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.threads import in_thread
from pilotlight_predictor.waiting import WaitingLine

log = logging.getLogger("pilotlight.registry")

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"


@dataclass(slots=True)
class Status:
    state: str
    reason: str = ""


@dataclass(slots=True)
class Entry:
    """What is known of one model: its versions that serve, and the state of every version ever asked for."""

    source: ModelSource
    serving: dict[int, ServedVersion] = field(default_factory=dict)
    states: dict[int, Status] = field(default_factory=dict)
    reason: str = ""  # why the model as a whole cannot be loaded
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelRegistry:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._entries: dict[str, Entry] = {}
        self._newest: dict[str, ServedVersion] = {}
        self._slots = asyncio.Semaphore(4)
        size = settings.performance.response_cache_bytes
        self._cache = ResponseCache(size) if size else None
        self._closing: set[asyncio.Task[None]] = set()
        metrics.queue_depths = self._queue_depths
        metrics.model_states = self._model_states

    def find(self, name: str, version: int = NEWEST) -> ServedVersion:
        """The version asked for, or the newest that is ready. Raises NotFound or NotReady with the reason."""
        if version == NEWEST:
            newest = self._newest.get(name)
            if newest is not None:
                return newest
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version in entry.serving:
            return entry.serving[version]
        raise _absent(name, version, entry)

    def infer(self, request: InferRequest, done: Done) -> Ticket:
        """For ensembles: the request's own model and version."""
        return self.find(request.model, request.version).infer(request, done)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def served(self, name: str) -> list[ServedVersion]:
        """All versions of the model that serve, newest last."""
        self.find(name)
        return [self._entries[name].serving[v] for v in sorted(self._entries[name].serving)]

    def serving(self) -> Iterator[ServedVersion]:
        for entry in self._entries.values():
            yield from entry.serving.values()

    def is_ready(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and any(served.executor.alive for served in entry.serving.values())

    def reason(self, name: str) -> str:
        """Why the model does not serve, in one sentence."""
        entry = self._entries.get(name)
        if entry is None:
            return f"'{name}' is not in the repository"
        return entry.reason or next((s.reason for s in entry.states.values() if s.reason), "loading")

    def loading(self) -> bool:
        return any(s.state == LOADING for entry in self._entries.values() for s in entry.states.values())

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        rows = []
        for name, entry in sorted(self._entries.items()):
            for version, status in sorted(entry.states.items()) or [(NEWEST, Status(UNAVAILABLE, entry.reason))]:
                if not ready_only or status.state == READY:
                    number = {} if version == NEWEST else {"version": str(version)}
                    rows.append({"name": name, **number, "state": status.state, "reason": status.reason})
        return rows

    def discover(self, source: ModelSource) -> None:
        """Makes a model known without loading it (explicit mode lists what could be loaded)."""
        entry = self._entries.get(source.name)
        if entry is None:
            self._entries[source.name] = Entry(source, reason="unloaded")
        else:
            entry.source = source

    def forget(self, name: str) -> None:
        """Drops a model that has left the repository and serves no more."""
        entry = self._entries.get(name)
        if entry is not None and not entry.serving:
            del self._entries[name]

    async def load(
        self, source: ModelSource, override: ModelConfig | None = None, changed: frozenset[int] | None = None
    ) -> None:
        """Brings the model to what source and config say. `changed` limits what is loaded anew to these versions.

        Raises LoadFailed when a version fails; versions that served before go on serving.
        """
        entry = self._entries.setdefault(source.name, Entry(source))
        entry.source = source
        async with entry.lock:
            try:
                config = await in_thread(lambda: check_source(source, override))
            except LoadFailed as error:
                self._fail_model(entry, error)
                raise
            policy = config.version_policy if config else VersionPolicy()
            wanted = choose_versions(policy, source.versions)
            await self._load_versions(entry, config, wanted, changed)
            for version in [v for v in entry.serving if v not in wanted]:
                self._retire(entry, version, "unloaded by the version policy")

    def _fail_model(self, entry: Entry, error: LoadFailed) -> None:
        entry.reason = str(error)
        for version in entry.source.versions:
            if version not in entry.serving:
                entry.states[version] = Status(UNAVAILABLE, str(error))
        log.error("failed to load '%s': %s", entry.source.name, error)

    async def _load_versions(
        self, entry: Entry, config: ModelConfig | None, wanted: tuple[int, ...], changed: frozenset[int] | None
    ) -> None:
        fresh = [v for v in wanted if v not in entry.serving or changed is None or v in changed]
        for version in fresh:
            if version not in entry.serving:
                entry.states[version] = Status(LOADING)
        outcomes = await asyncio.gather(*(self._load_version(entry, config, version) for version in fresh))
        failures = [failure for failure in outcomes if failure]
        entry.reason = failures[0] if failures else ""
        if failures:
            raise LoadFailed(failures[0])
        if not wanted:
            entry.reason = f"no version of '{entry.source.name}' is chosen by its version_policy"
            raise LoadFailed(entry.reason)

    async def _load_version(self, entry: Entry, config: ModelConfig | None, version: int) -> str:
        """The reason why it failed, or nothing."""
        name, started = entry.source.name, perf_counter()
        try:
            async with self._slots:
                work = in_thread(lambda: load_version(entry.source, version, config, self._settings))
                loaded = await asyncio.wait_for(work, self._settings.model.load_timeout_s or None)
            self._serve(entry, loaded)
        except Exception as error:
            reason = self._explain(name, version, error)
            if version not in entry.serving:
                entry.states[version] = Status(UNAVAILABLE, reason)
            return reason
        total = perf_counter() - started
        self._metrics.record_load(name, version, loaded.phases, total)
        log.info("loaded '%s' version %d in %.3f s", name, version, total, extra={"phases": loaded.phases})
        return ""

    def _explain(self, name: str, version: int, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            reason = f"loading took longer than {self._settings.model.load_timeout_s:g} s (--load-timeout)"
        elif isinstance(error, PredictorError):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {error}"
            log.error("failed to load '%s' version %d", name, version, exc_info=error)
            return reason
        log.error("failed to load '%s' version %d: %s", name, version, reason)
        return reason

    def _serve(self, entry: Entry, loaded: Loaded) -> None:
        config, version = loaded.config, loaded.version
        cached = config.response_cache and self._cache is not None
        stats = self._metrics.model(config.name, version, config.metric_tags, cached)
        served = ServedVersion(
            config, version, self._executor(loaded, stats), stats, metadata_specs(config), loaded.labels,
            self._cache if cached else None,
        )  # fmt: skip
        old = entry.serving.get(version)
        entry.serving[version] = served
        entry.states[version] = Status(READY)
        self._newest[config.name] = entry.serving[max(entry.serving)]
        if old is not None:
            self._close(old)

    def _executor(self, loaded: Loaded, stats: Any) -> Executor:
        config = loaded.config
        if config.ensemble:
            models = [step.model for step in config.ensemble]
            return Ensemble(config, self.infer, stats, lambda: all(self.is_ready(model) for model in models))
        line = WaitingLine(config.dynamic_batching, self._settings.performance.max_queue_size)
        batching = config.dynamic_batching
        return Scheduler(
            loaded.instances, policy_of(config.max_batch_size, batching), line, stats,
            preserve_ordering=batching is not None and batching.preserve_ordering, trial_ns=loaded.trial_ns,
        )  # fmt: skip

    async def unload(self, name: str, dependents: bool = False) -> None:
        """New requests fail at once; those in flight finish. `dependents`: an ensemble takes its models with it."""
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"failed to unload '{name}': unknown model")
        async with entry.lock:
            parts = {step.model for served in entry.serving.values() for step in served.config.ensemble}
            for version in list(entry.serving):
                self._retire(entry, version, "unloaded")
            entry.reason = "unloaded"
        if dependents:
            for part in parts & self._entries.keys():
                await self.unload(part)

    def _retire(self, entry: Entry, version: int, reason: str) -> None:
        served = entry.serving.pop(version)
        entry.states[version] = Status(UNAVAILABLE, reason)
        if entry.serving:
            self._newest[served.name] = entry.serving[max(entry.serving)]
        else:
            self._newest.pop(served.name, None)
        self._close(served)

    def _close(self, served: ServedVersion) -> None:
        task = asyncio.get_running_loop().create_task(served.executor.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Waits for everything in flight, then frees all models."""
        for served in list(self.serving()):
            self._close(served)
        await asyncio.gather(*self._closing)

    def _queue_depths(self) -> list[QueueDepth]:
        return [QueueDepth(s.name, s.version, s.executor.pending) for s in self.serving()]

    def _model_states(self) -> list[ModelState]:
        return [
            ModelState(name, version, status.state)
            for name, entry in self._entries.items()
            for version, status in entry.states.items()
        ]

    def configs(self) -> Mapping[str, ModelConfig]:
        return {name: served.config for name, served in self._newest.items()}


def _absent(name: str, version: int, entry: Entry) -> PredictorError:
    """Why a known model cannot serve this version."""
    status = entry.states.get(version)
    if version != NEWEST and status is None:
        return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
    if version != NEWEST and status is not None:
        reason = f": {status.reason}" if status.reason else ""
        return NotReady(f"Request for unknown model: '{name}' version {version} is not at ready state{reason}")
    if any(s.state == LOADING for s in entry.states.values()):
        return NotReady(f"'{name}' is loading")
    reason = entry.reason or next((s.reason for s in entry.states.values() if s.reason), "")
    return NotFound(
        f"Request for unknown model: '{name}' has no available versions" + (f": {reason}" if reason else "")
    )
