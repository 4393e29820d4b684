"""Which models shall be served: what is loaded at start, what the poll finds, what an operator's call asks for."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from pilotlight_predictor.errors import BadRequest, Forbidden, LoadFailed, NotFound, PredictorError
from pilotlight_predictor.logs import log
from pilotlight_predictor.registry import ModelRegistry
from pilotlight_predictor.repository.changes import Fingerprint, changed_versions, fingerprint, settled_changes
from pilotlight_predictor.repository.layout import ModelSource, check_source, plain_source
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.sources import Sources
from pilotlight_predictor.threads import in_thread


class ModelControl:
    def __init__(self, settings: Settings, registry: ModelRegistry, sources: Sources) -> None:
        self._mode = settings.model.control_mode
        self._settings = settings
        self._registry = registry
        self._sources = sources
        self._inline: dict[str, Path] = {}
        self.required: tuple[str, ...] = ()
        self.fetch_s = 0.0  # what bringing the models here took at start
        self._acted: dict[str, Fingerprint] = {}
        self._seen: dict[str, Fingerprint] = {}

    @property
    def may_be_empty(self) -> bool:
        return self._mode == "explicit"

    @property
    def workers(self) -> int:
        return self._settings.server.workers

    @property
    def _polls(self) -> bool:
        return self._mode in {"poll", "versions"}

    async def start(self) -> None:
        """Loads what must be there before the server is ready; a model that fails keeps its reason."""
        self.required = self._initial({})  # whatever the repository holds, models asked for by name must come
        started = perf_counter()
        found = await in_thread(self._sources.refresh)
        self.fetch_s = perf_counter() - started
        self._survey(found)
        self._registry.expect(self.required)
        if self._polls:  # before the loads: a file that changes meanwhile is a change for the first poll
            self._acted = self._seen = await in_thread(lambda: _fingerprints(found))
        names = [name for name in self.required if name in found]
        loads = (self._load_with_parts(found[name], if_absent=True) for name in names)
        for name, outcome in zip(names, await asyncio.gather(*loads, return_exceptions=True), strict=True):
            if isinstance(outcome, Exception):
                self._registry.give_up(name, outcome)

    def _survey(self, found: Mapping[str, ModelSource]) -> None:
        """The repository was read for the first time: what there is, and what of it the server is for."""
        for source in found.values():
            self._registry.discover(source)
        self.required = self._initial(found)
        self._registry.surveyed = True

    def _initial(self, found: Mapping[str, ModelSource]) -> tuple[str, ...]:
        if self._mode != "explicit" or "*" in self._settings.model.load_models:
            return tuple(found)
        return tuple(dict.fromkeys(self._settings.model.load_models))

    async def follow(self) -> None:
        """Polls for ever; an error of one round is logged and the next round tries again."""
        while self._polls:
            await asyncio.sleep(self._settings.model.poll_secs)
            try:
                await self.poll()
            except LoadFailed as error:
                log("repository.unreadable", f"what serves goes on: {error}", level="ERROR")
            except Exception as error:
                log("repository.poll_failed", "the next poll tries again", level="ERROR", error=error)

    async def poll(self) -> None:
        """One round: acts on what differs from the last state acted upon and has come to rest."""
        if not self._registry.surveyed:  # the start could not read the repository: it is made up for
            await self.start()
            return
        found = await in_thread(self._sources.refresh)
        seen = await in_thread(lambda: _fingerprints(found))
        if self._mode == "versions":
            # The set of models is fixed: a new one is not for us, and one whose directory vanished keeps serving.
            seen = {name: seen.get(name, acted) for name, acted in self._acted.items()}
        changes = settled_changes(self._acted, self._seen, seen)
        self._seen = seen
        for name in changes.removed:
            await self._remove(name)
        for name in (*changes.added, *changes.changed):
            await self._follow_model(found[name], seen[name])
        if not self.required:  # nothing was there at start: what came first is what the server is for
            self.required = changes.added

    async def _remove(self, name: str) -> None:
        del self._acted[name]
        await self._registry.unload(name)
        self._registry.forget(name)
        self._release([name])

    def _release(self, names: Collection[str]) -> None:
        """An operator took the models away: the server is no less ready without them."""
        self.required = tuple(other for other in self.required if other not in names)

    async def _follow_model(self, source: ModelSource, seen: Fingerprint) -> None:
        before = self._acted.get(source.name)
        changed = changed_versions(before, seen) if before else None
        self._acted[source.name] = seen
        try:
            await self._registry.load(source, changed=changed)
        except LoadFailed as error:
            message = f"'{source.name}' was not reloaded, what served before goes on: {error}"
            log("model.reload_failed", message, level="ERROR", model=source.name)

    async def load(self, name: str, document: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        """A call of an operator or a model: (re)loads, with another configuration or the model's own files if given."""
        self._check_files(name, document, files)
        self._check_explicit()
        override = _override(name, document) if document is not None else None
        if files:
            await self._load_inline(name, override, files)
        else:
            await self._load_with_parts(await self._find(name), override)

    async def _load_inline(self, name: str, override: ModelConfig | None, files: Mapping[str, bytes]) -> None:
        from tempfile import mkdtemp

        root = Path(mkdtemp(prefix="pilotlight-inline-"))
        try:
            source = await in_thread(lambda: _inline_source(root / name, name, files))
            await self._load_with_parts(source, override)
        except BaseException:
            _remove(root)
            raise
        self._drop_inline(name)
        self._inline[name] = root

    async def unload(self, name: str, dependents: bool) -> None:
        self._check_explicit()
        unloaded = await self._registry.unload(name, dependents)
        for each in unloaded:
            self._drop_inline(each)
        self._release(unloaded)

    def _drop_inline(self, name: str) -> None:
        root = self._inline.pop(name, None)
        if root is not None:
            _remove(root)

    def close(self) -> None:
        for name in list(self._inline):
            self._drop_inline(name)

    def _check_files(self, name: str, document: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        if not valid_model_name(name):  # files would be written outside of their folder
            raise BadRequest(f"model name {name[:100]!r} is not valid: it must be one path segment")
        if files and not self._settings.model.allow_inline_files:
            raise Forbidden(
                "parameters: model files within a request are refused by this server (--allow-inline-files)"
            )
        if files and document is None:
            raise BadRequest("parameters.config is needed when files are given")

    def _check_explicit(self) -> None:
        if self._mode != "explicit":
            raise BadRequest(
                "explicit model load / unload is not allowed if polling is enabled or models are fixed at start;"
                " use --model-control-mode=explicit"
            )

    async def _find(self, name: str) -> ModelSource:
        found = await in_thread(self._sources.refresh)
        if not self._registry.surveyed:
            self._survey(found)
        if name not in found:
            raise NotFound(f"failed to load '{name}': it is in none of the model repositories")
        return found[name]

    async def _load_with_parts(
        self,
        source: ModelSource,
        override: ModelConfig | None = None,
        above: tuple[str, ...] = (),
        if_absent: bool = False,
    ) -> None:
        """In explicit mode an ensemble brings those of its models that are not there yet."""
        config = override or await in_thread(lambda: _config_or_none(source))
        parts = {step.model for step in config.ensemble} if config and self._mode == "explicit" else set()
        for part in sorted(parts - {source.name, *above}):  # the registry refuses an ensemble that contains itself
            if not self._registry.is_ready(part):
                await self._load_part(source.name, part, (*above, source.name))
        await self._registry.load(source, override, if_absent=if_absent)

    async def _load_part(self, ensemble: str, part: str, above: tuple[str, ...]) -> None:
        """A part that fails says why in the index; the ensemble is then loaded but not ready, with that reason."""
        try:
            await self._load_with_parts(await self._find(part), above=above, if_absent=True)
        except PredictorError as error:
            message = f"'{part}', a model of the ensemble '{ensemble}', was not loaded: {error}"
            log("model.part_failed", message, level="ERROR", model=part, ensemble=ensemble)


def _inline_source(directory: Path, name: str, files: Mapping[str, bytes]) -> ModelSource:
    try:
        _write(directory, files)
    except OSError as error:  # only the client's file names can be at fault: one too long, one within another
        raise BadRequest(
            f"failed to load '{name}': parameters: its files cannot be written: {error.strerror}"
        ) from None
    return plain_source(directory, name)


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _remove(root: Path) -> None:
    """shutil and tempfile bring the libraries of three compressors, which a start without such models need not load."""
    import shutil

    shutil.rmtree(root, ignore_errors=True)


def _override(name: str, document: Mapping[str, Any]) -> ModelConfig:
    from msgspec.structs import replace

    from pilotlight_predictor.repository.read_config import config_from_json

    config = config_from_json(dict(document), "parameters.config")
    if config.name and config.name != name:
        raise BadRequest(f"parameters.config: name = '{config.name}', must be '{name}' as in the path")
    return replace(config, name=name)


def _config_or_none(source: ModelSource) -> ModelConfig | None:
    try:
        return check_source(source)
    except PredictorError:
        return None  # the load itself reports it


def _fingerprints(found: Mapping[str, ModelSource]) -> dict[str, Fingerprint]:
    return {name: fingerprint(source) for name, source in found.items()}
