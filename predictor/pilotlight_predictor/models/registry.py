"""Registry of models by name and version: lookup for requests, load and unload for operators.

Used on the event loop; loads run in threads. A reloaded version replaces the old one in one step, so that a reload
leaves no gap, and a failed one leaves the old version serving.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct, field

from pilotlight.wire.messages import known_names
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import LoadFailed, NotFound, NotReady, PredictorError
from pilotlight_predictor.metrics import Metrics, ModelState, QueueDepth
from pilotlight_predictor.models.bls import WAITING, BlsContext
from pilotlight_predictor.models.load_queue import LoadQueue, log_load_failure, open_version, reason_of
from pilotlight_predictor.models.loader import LoadedVersion
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.parking import create_parking
from pilotlight_predictor.models.response_cache import ResponseCache
from pilotlight_predictor.models.warmup import DecodeExample
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.layout import ModelSource, check_source, choose_versions
from pilotlight_predictor.repository.model_config import ModelConfig, VersionPolicy
from pilotlight_predictor.scheduling.ensemble import find_cycle

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
            self.mark(version, READY, f"the last reload failed, the version loaded before keeps serving: {reason}")
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
            reason = self._client_reason(status.reason)
            return NotReady(f"Request for unknown model: '{name}' version {version} is not at ready state{reason}")
        if self.loading:
            return NotReady(f"'{name}' is loading")
        if version != NEWEST:
            reason = self._client_reason(status.reason if status is not None else "")
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found{reason}")
        reason = self._client_reason(self.problem())
        return NotFound(f"Request for unknown model: '{name}' has no available versions{reason}")

    def _client_reason(self, reason: str) -> str:
        """Return the suffix of an error for inference clients. Reasons of failed loads may have paths of this machine
        and passwords; they are for operators."""
        failed = f"it failed to load; GET /v2/models/{self.source.name}/ready and the server's log have the reason"
        return f": {reason if reason in _REMOVED else failed}" if reason else ""


class ModelRegistry:
    """All models of the server, loaded or only known."""

    def __init__(self, settings: Settings, metrics: Metrics, decode_example: DecodeExample | None = None) -> None:
        self._settings = settings
        own = settings.server  # a list of models may need a key; clients of other servers match their sentences
        self._names_models = not (own.compat or own.http_restricted_apis or own.grpc_restricted_apis)
        self._metrics = metrics
        self._entries: dict[str, ModelEntry] = {}
        self._newest: dict[str, ModelVersion] = {}
        self.bls = BlsContext(self.find, metrics)
        self._loads = LoadQueue(settings, self.bls, decode_example)
        self.cache = ResponseCache(size) if (size := settings.performance.response_cache_bytes) else None
        self.parking = create_parking(settings, metrics)
        self._closing: set[asyncio.Task[None]] = set()
        self.scanned = False  # the repository has been read: before that, an unknown model is NotReady, not NotFound
        self.budget: ByteBudget | None = None
        self.on_version: Callable[[ModelVersion], None] = lambda served: None
        metrics.queue_depths = lambda: [QueueDepth(s.name, s.version, s.executor.pending) for s in self.serving()]
        metrics.model_states = lambda: [
            ModelState(row["name"], int(row["version"]), row["state"]) for row in self.index() if "version" in row
        ]

    def find(self, name: str, version: int = NEWEST, adapters: Iterable[str] = ()) -> ModelVersion:
        """Return a version, by default the newest that is ready. Raises NotFound with near names, or NotReady."""
        if version == NEWEST and (newest := self._newest.get(name)) is not None:
            return newest
        entry = self._entries.get(name)
        if entry is None:
            if not self.scanned:
                raise NotReady(f"'{name}' is not loaded yet: the server is still finding its models")
            known = [*self.requested(), *adapters]
            hint = known_names(name, known, "GET /v2/models lists the models") if self._names_models else ""
            raise NotFound(f"Request for unknown model: '{name}' is not found{hint}")
        if version in entry.serving:
            return entry.serving[version]
        raise entry.unavailable_error(version)

    def newest(self, name: str) -> ModelVersion | None:
        return self._newest.get(name)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def requested(self) -> list[str]:
        """Return the names of all models except those that could be loaded but are not."""
        return sorted(name for name, entry in self._entries.items() if not entry.unloaded)

    def served(self, name: str) -> list[ModelVersion]:
        """Return all serving versions of a model, newest last."""
        self.find(name)
        return [self._entries[name].serving[v] for v in sorted(self._entries[name].serving)]

    def serving(self) -> Iterator[ModelVersion]:
        for entry in self._entries.values():
            yield from entry.serving.values()

    def give_up_hung(self, ticks: int) -> str:
        """Give up instances that run the same batch as at the last `ticks` calls; return a sentence about one."""
        found = [(version.name, version.executor.give_up_hung(ticks)) for version in self.serving()]
        return next((f"model '{name}': {sentence}" for name, sentence in found if sentence), "")

    @property
    def loading(self) -> bool:
        return any(entry.loading for entry in self._entries.values())

    def is_ready(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.ready

    def reason(self, name: str, version: int = NEWEST) -> str:
        """Return why the model, or the version, does not serve, in one sentence for operators."""
        entry = self._entries.get(name)
        if entry is None:
            return f"'{name}' is not in the repository"
        status = entry.states.get(version)
        return entry.problem() if status is None else status.reason

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        rows = [row for _, entry in sorted(self._entries.items()) for row in entry.index_rows()]
        return [row for row in rows if row["state"] in {READY, PARKED}] if ready_only else rows

    def discover(self, source: ModelSource) -> None:
        """Register a model without loading it: explicit mode lists what could be loaded."""
        entry = self._entries.setdefault(source.name, ModelEntry(source, reason=UNLOADED))
        entry.source = source

    def mirror(self, entries: Iterable[ModelEntry]) -> None:
        """Serve exactly these models, which another process has loaded."""
        self._entries = {entry.source.name: entry for entry in entries}
        newest = {name: entry.serving for name, entry in self._entries.items() if entry.serving}
        self._newest = {name: serving[max(serving)] for name, serving in newest.items()}
        self.scanned = True

    def entries(self) -> Iterable[ModelEntry]:
        return self._entries.values()

    def mark_loading(self, names: Iterable[str]) -> None:
        """Mark models whose loads are about to start."""
        for name in names:
            if name in self._entries:
                self._entries[name].loading = True

    def mark_failed(self, name: str, error: Exception) -> None:
        """Record the failure of a load, perhaps before it reached `load`."""
        entry = self._entries[name]
        if not isinstance(error, PredictorError):
            log_load_failure(name, error)
        if not entry.lock.locked():  # else another load of it runs
            entry.loading, entry.reason = False, reason_of(error)

    def forget(self, name: str) -> None:
        """Remove a model that left the repository and has no serving version."""
        entry = self._entries.get(name)
        if entry is not None and not entry.serving:
            del self._entries[name]

    async def load(
        self, source: ModelSource, override: ModelConfig | None = None, changed: frozenset[int] | None = None, *,
        if_absent: bool = False,
    ) -> None:  # fmt: skip
        """Load or reload a model. `changed` limits the reload of serving versions to these.

        Raises LoadFailed if a version fails; versions that served before continue. `if_absent`: do nothing if the model
        was loaded concurrently.
        """
        entry = self._entries.setdefault(source.name, ModelEntry(source))
        _check_deadlock(entry)
        async with entry.lock:
            if if_absent and entry.serving:
                return
            entry.source, entry.loading = source, True
            try:
                await self._load(entry, override, changed)
            except Exception as error:
                entry.reason = reason_of(error)
                raise
            finally:
                entry.loading = False
            entry.reason = ""

    async def _load(self, entry: ModelEntry, override: ModelConfig | None, changed: frozenset[int] | None) -> None:
        try:
            config = await in_thread(lambda: check_source(entry.source, override))
        except Exception as error:
            log_load_failure(entry.source.name, error)
            for version in {*entry.source.versions, *entry.serving}:
                entry.mark_load_failed(version, reason_of(error))
            raise LoadFailed(reason_of(error)) from error
        chosen = choose_versions(config.version_policy if config else VersionPolicy(), entry.source.versions)
        if not chosen:
            raise LoadFailed(f"no version of '{entry.source.name}' is chosen by its version_policy")
        await self._load_versions(entry, config, chosen, changed)
        for version in [v for v in entry.serving if v not in chosen]:
            self._retire(entry, version, RETIRED)
        for version in [v for v in entry.states if v not in chosen and v not in entry.source.versions]:
            if entry.states[version].state == UNAVAILABLE:
                del entry.states[version]

    async def _load_versions(
        self, entry: ModelEntry, config: ModelConfig | None, chosen: tuple[int, ...], changed: frozenset[int] | None
    ) -> None:
        fresh = [v for v in chosen if v not in entry.serving or changed is None or v in changed]
        for version in fresh:
            if version not in entry.serving:
                entry.mark(version, LOADING)
        outcomes = await asyncio.gather(*(self._load_version(entry, config, version) for version in fresh))
        if failure := next(filter(None, outcomes), ""):
            raise LoadFailed(failure)

    async def _load_version(self, entry: ModelEntry, config: ModelConfig | None, version: int) -> str:
        """Load and serve a version. Return why it failed, or an empty string."""
        name = entry.source.name
        try:
            loaded = await self._loads.run(entry.source, version, config)
            self._serve(entry, loaded)
        except Exception as error:
            if not isinstance(error, LoadFailed):
                log_load_failure(name, error)
            entry.mark_load_failed(version, reason_of(error))
            return reason_of(error)
        total = loaded.phases.pop("total")
        self._metrics.record_load(name, version, loaded.phases, total)
        phases = {phase: round(seconds, 4) for phase, seconds in loaded.phases.items()}
        log("model.loaded", f"'{name}' in {total:.3f} s", model=name, version=version, phases=phases)
        return ""

    def _serve(self, entry: ModelEntry, loaded: LoadedVersion) -> None:
        config, version = loaded.config, loaded.version
        if config.ensemble:
            self._check_cycle(config)
        cached = config.response_cache and self.cache is not None
        stats = self._metrics.model(config.name, version, config.metric_tags, cached)
        queue_size = self._settings.performance.max_queue_size
        served = open_version(loaded, stats, self.find, queue_size, self.cache if cached else None, self.budget)
        self.on_version(served)
        self.parking.add(served, loaded.instances)
        old = entry.serving.get(version)
        entry.serving[version] = served
        entry.mark(version, READY)
        self._newest[config.name] = entry.serving[max(entry.serving)]
        if old is not None:
            self._close(old)

    def _check_cycle(self, config: ModelConfig) -> None:
        def parts_of(name: str) -> list[str]:
            known = self._newest.get(name)
            steps = config.ensemble if name == config.name else known.config.ensemble if known else ()
            return [step.model for step in steps]

        if cycle := find_cycle(config.name, parts_of):
            raise LoadFailed(f"ensemble '{config.name}' contains itself: {' → '.join(cycle)}; remove one of the steps")

    async def unload(self, name: str, dependents: bool = False) -> set[str]:
        """Unload a model: new requests fail, those in flight finish. `dependents`: also the models of an ensemble.

        Return the names of all unloaded models.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"failed to unload '{name}': unknown model")
        _check_deadlock(entry)
        async with entry.lock:
            parts = {step.model for served in entry.serving.values() for step in served.config.ensemble}
            for version in list(entry.states):
                if version in entry.serving:
                    self._retire(entry, version, UNLOADED)
                else:
                    entry.mark(version, UNAVAILABLE, UNLOADED)
            entry.reason = UNLOADED
        log("model.unloaded", f"'{name}' accepts no more requests", model=name)
        unloaded = {name}
        if dependents:
            for part in parts & self._entries.keys():
                unloaded |= await self.unload(part, dependents)
        return unloaded

    def _retire(self, entry: ModelEntry, version: int, reason: str) -> None:
        served = entry.serving.pop(version)
        status = entry.mark(version, UNLOADING, reason)
        if entry.serving:
            self._newest[served.name] = entry.serving[max(entry.serving)]
        else:
            self._newest.pop(served.name, None)
        self._close(served, entry, status)

    def _close(
        self, served: ModelVersion, entry: ModelEntry | None = None, status: VersionStatus | None = None
    ) -> None:
        async def close() -> None:
            await served.executor.close()
            await self.parking.remove(served)
            if entry is not None and status is not None:
                self._finish_retiring(entry, served.version, status)

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _finish_retiring(self, entry: ModelEntry, version: int, status: VersionStatus) -> None:
        """Update the state of a retired version after its last request; drop it if it has left the disk."""
        if entry.states.get(version) is not status:
            return
        status.state = UNAVAILABLE
        if version not in entry.source.versions:
            del entry.states[version]
            self._metrics.drop(entry.source.name, version)

    async def close(self) -> None:
        """Finish all requests in flight, then free all models."""
        for served in list(self.serving()):
            self._close(served)
        await asyncio.gather(*self._closing)


def _check_deadlock(entry: ModelEntry) -> None:
    """Raise LoadFailed if this load or unload would wait for a model that waits for it (BLS)."""
    if entry.lock.locked() and (name := entry.source.name) in WAITING.get():
        raise LoadFailed(f"'{name}' is loading and waits for this load: this would deadlock")
