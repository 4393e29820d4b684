"""The models that are served, by name and version: lookup for requests, load and unload for operators.

Lives on the event loop; loading itself happens in threads (loader.py). A new version is built beside the old one and
takes its place in one step, so a reload never leaves a gap and a failed one leaves the old version serving.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from pilotlight_predictor.backends.ensemble import circle
from pilotlight_predictor.errors import LoadFailed, NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.loader import Loaded
from pilotlight_predictor.loading import WAITING, Loads, reason_of, tell_failed
from pilotlight_predictor.logs import log
from pilotlight_predictor.metrics import Metrics, ModelState, QueueDepth
from pilotlight_predictor.model_calls import Reach
from pilotlight_predictor.model_entry import (
    LOADING,
    PARKED,
    READY,
    RETIRED,
    UNAVAILABLE,
    UNLOADED,
    UNLOADING,
    Entry,
    Status,
)
from pilotlight_predictor.opening import open_version
from pilotlight_predictor.parking import parking
from pilotlight_predictor.repository.layout import ModelSource, check_source
from pilotlight_predictor.repository.model_config import ModelConfig, VersionPolicy
from pilotlight_predictor.repository.versions import choose_versions
from pilotlight_predictor.response_cache import ResponseCache
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.threads import in_thread


class ModelRegistry:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._entries: dict[str, Entry] = {}
        self._newest: dict[str, ServedVersion] = {}
        self.reach = Reach(self.find, metrics)
        self._loads = Loads(settings, self.reach)
        size = settings.performance.response_cache_bytes
        self._cache = ResponseCache(size) if size else None
        self.parking = parking(settings, metrics)
        self._closing: set[asyncio.Task[None]] = set()
        self.surveyed = False  # whether the repository has been read: before, no model can be called unknown
        self.announce: Callable[[ServedVersion], None] = _nobody_listens
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
            if not self.surveyed:
                raise NotReady(f"'{name}' is not loaded yet: the server is looking for its models")
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version in entry.serving:
            return entry.serving[version]
        raise entry.absent(version)

    def newest(self, name: str) -> ServedVersion | None:
        return self._newest.get(name)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def asked_for(self) -> list[str]:
        """All models but those that merely could be loaded."""
        return sorted(name for name, entry in self._entries.items() if not entry.unloaded)

    def served(self, name: str) -> list[ServedVersion]:
        """All versions of the model that serve, newest last."""
        self.find(name)
        return [self._entries[name].serving[v] for v in sorted(self._entries[name].serving)]

    def serving(self) -> Iterator[ServedVersion]:
        for entry in self._entries.values():
            yield from entry.serving.values()

    def is_ready(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.ready

    def reason(self, name: str) -> str:
        """Why the model does not serve, in one sentence."""
        entry = self._entries.get(name)
        return f"'{name}' is not in the repository" if entry is None else entry.why()

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        rows = [row for _, entry in sorted(self._entries.items()) for row in entry.rows()]
        return [row for row in rows if row["state"] in {READY, PARKED}] if ready_only else rows

    def discover(self, source: ModelSource) -> None:
        """Makes a model known without loading it (explicit mode lists what could be loaded)."""
        entry = self._entries.setdefault(source.name, Entry(source, reason=UNLOADED))
        entry.source = source

    def expect(self, names: Iterable[str]) -> None:
        """Their loads are about to start: from here on they are loading, not unknown."""
        for name in names:
            if name in self._entries:
                self._entries[name].loading = True

    def give_up(self, name: str, error: Exception) -> None:
        """A load that was expected has ended, perhaps before it came to `load`: the model says why."""
        entry = self._entries[name]
        if not isinstance(error, PredictorError):
            tell_failed(name, error)
        if not entry.lock.locked():  # else somebody loads it again
            entry.loading, entry.reason = False, reason_of(error)

    def forget(self, name: str) -> None:
        """Drops a model that has left the repository and serves no more."""
        entry = self._entries.get(name)
        if entry is not None and not entry.serving:
            del self._entries[name]

    async def load(
        self,
        source: ModelSource,
        override: ModelConfig | None = None,
        changed: frozenset[int] | None = None,
        *,
        if_absent: bool = False,
    ) -> None:
        """Brings the model to what source and config say. `changed` limits what is loaded anew to these versions.

        Raises LoadFailed when a version fails; versions that served before go on serving. `if_absent`: a model that
        somebody else loaded meanwhile is good enough.
        """
        entry = self._entries.setdefault(source.name, Entry(source))
        _refuse_to_wait(entry)
        async with entry.lock:
            if if_absent and entry.serving:
                return
            entry.source, entry.loading = source, True
            try:
                await self._bring(entry, override, changed)
            except Exception as error:
                entry.reason = reason_of(error)
                raise
            finally:
                entry.loading = False
            entry.reason = ""

    async def _bring(self, entry: Entry, override: ModelConfig | None, changed: frozenset[int] | None) -> None:
        try:
            config = await in_thread(lambda: check_source(entry.source, override))
        except Exception as error:
            tell_failed(entry.source.name, error)
            for version in {*entry.source.versions, *entry.serving}:
                entry.blame(version, reason_of(error))
            raise LoadFailed(reason_of(error)) from error
        wanted = choose_versions(config.version_policy if config else VersionPolicy(), entry.source.versions)
        if not wanted:
            raise LoadFailed(f"no version of '{entry.source.name}' is chosen by its version_policy")
        await self._load_versions(entry, config, wanted, changed)
        for version in [v for v in entry.serving if v not in wanted]:
            self._retire(entry, version, RETIRED)
        for version in [v for v in entry.states if v not in wanted and v not in entry.source.versions]:
            if entry.states[version].state == UNAVAILABLE:
                del entry.states[version]

    async def _load_versions(
        self, entry: Entry, config: ModelConfig | None, wanted: tuple[int, ...], changed: frozenset[int] | None
    ) -> None:
        fresh = [v for v in wanted if v not in entry.serving or changed is None or v in changed]
        for version in fresh:
            if version not in entry.serving:
                entry.mark(version, LOADING)
        outcomes = await asyncio.gather(*(self._load_version(entry, config, version) for version in fresh))
        failures = [failure for failure in outcomes if failure]
        if failures:
            raise LoadFailed(failures[0])

    async def _load_version(self, entry: Entry, config: ModelConfig | None, version: int) -> str:
        """The reason why it failed, or nothing."""
        name = entry.source.name
        try:
            loaded = await self._loads.run(entry.source, version, config)
            self._serve(entry, loaded)
        except Exception as error:
            if not isinstance(error, LoadFailed):
                tell_failed(name, error)
            entry.blame(version, reason_of(error))
            return reason_of(error)
        total = loaded.phases.pop("total")
        self._metrics.record_load(name, version, loaded.phases, total)
        phases = {phase: round(seconds, 4) for phase, seconds in loaded.phases.items()}
        log("model.loaded", f"'{name}' in {total:.3f} s", model=name, version=version, phases=phases)
        return ""

    def _serve(self, entry: Entry, loaded: Loaded) -> None:
        config, version = loaded.config, loaded.version
        if config.ensemble:
            self._refuse_circle(config)
        cached = config.response_cache and self._cache is not None
        stats = self._metrics.model(config.name, version, config.metric_tags, cached)
        most = self._settings.performance.max_queue_size
        served = open_version(loaded, stats, self.find, most, self._cache if cached else None)
        self.announce(served)
        self.parking.enter(served, loaded.instances)
        old = entry.serving.get(version)
        entry.serving[version] = served
        entry.mark(version, READY)
        self._newest[config.name] = entry.serving[max(entry.serving)]
        if old is not None:
            self._close(old)

    def _refuse_circle(self, config: ModelConfig) -> None:
        def parts_of(name: str) -> list[str]:
            known = self._newest.get(name)
            steps = config.ensemble if name == config.name else known.config.ensemble if known else ()
            return [step.model for step in steps]

        if found := circle(config.name, parts_of):
            raise LoadFailed(f"ensemble '{config.name}' contains itself: {' → '.join(found)}; remove one of the steps")

    async def unload(self, name: str, dependents: bool = False) -> set[str]:
        """New requests fail at once; those in flight finish. `dependents`: an ensemble takes its models with it.

        The names of all models that were unloaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"failed to unload '{name}': unknown model")
        _refuse_to_wait(entry)
        async with entry.lock:
            parts = {step.model for served in entry.serving.values() for step in served.config.ensemble}
            for version in list(entry.states):
                if version in entry.serving:
                    self._retire(entry, version, UNLOADED)
                else:
                    entry.mark(version, UNAVAILABLE, UNLOADED)
            entry.reason = UNLOADED
        log("model.unloaded", f"'{name}' takes no more requests", model=name)
        unloaded = {name}
        if dependents:
            for part in parts & self._entries.keys():
                unloaded |= await self.unload(part, dependents)
        return unloaded

    def _retire(self, entry: Entry, version: int, reason: str) -> None:
        served = entry.serving.pop(version)
        status = entry.mark(version, UNLOADING, reason)
        if entry.serving:
            self._newest[served.name] = entry.serving[max(entry.serving)]
        else:
            self._newest.pop(served.name, None)
        self._close(served, entry, status)

    def _close(self, served: ServedVersion, entry: Entry | None = None, status: Status | None = None) -> None:
        async def close() -> None:
            await served.executor.close()
            await self.parking.leave(served)
            if entry is not None and status is not None:
                self._gone(entry, served.version, status)

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _gone(self, entry: Entry, version: int, status: Status) -> None:
        """The last request of a retired version was answered; a version that has left the disk is forgotten."""
        if entry.states.get(version) is not status:
            return
        status.state = UNAVAILABLE
        if version not in entry.source.versions:
            del entry.states[version]
            self._metrics.drop(entry.source.name, version)

    async def close(self) -> None:
        """Waits for everything in flight, then frees all models."""
        for served in list(self.serving()):
            self._close(served)
        await asyncio.gather(*self._closing)

    def _queue_depths(self) -> list[QueueDepth]:
        return [QueueDepth(s.name, s.version, s.executor.pending) for s in self.serving()]

    def _model_states(self) -> list[ModelState]:
        return [
            ModelState(row["name"], int(row["version"]), row["state"])
            for row in self.index()
            if "version" in row
        ]  # fmt: skip


def _refuse_to_wait(entry: Entry) -> None:
    """A model may ask for others while it is loaded, but not for what waits for it in turn."""
    name = entry.source.name
    if entry.lock.locked() and name in WAITING.get():
        raise LoadFailed(f"'{name}' is being loaded and waits for this itself: neither would end")


def _nobody_listens(_: ServedVersion) -> None:
    """Until somebody wants to know of each version that is about to serve."""
