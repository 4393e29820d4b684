"""Model control: which models are loaded at start, by polling (poll, versions) or on request (explicit)."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import BadRequest, Forbidden, LoadFailed, NotFound, PredictorError
from pilotlight_predictor.models.registry import ModelRegistry
from pilotlight_predictor.models.sources import ModelSources
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.change_detection import Fingerprint, changed_versions, fingerprint, settled_changes
from pilotlight_predictor.repository.layout import ModelSource, check_source, plain_source
from pilotlight_predictor.repository.model_config import ModelConfig, valid_model_name


class ModelControl:
    """The control modes. `required`: models that must serve before the server is ready."""

    def __init__(self, settings: Settings, registry: ModelRegistry, sources: ModelSources) -> None:
        self._mode = settings.model.control_mode
        self._settings = settings
        self._registry = registry
        self._sources = sources
        self._inline: dict[str, Path] = {}
        self.required: tuple[str, ...] = ()
        self.fetch_s = 0.0  # duration of the fetch at start
        self._applied: dict[str, Fingerprint] = {}  # state of the repository that was last loaded
        self._observed: dict[str, Fingerprint] = {}  # state seen by the last poll

    @property
    def may_be_empty(self) -> bool:
        return self._mode == "explicit"

    def fetch(self, uri: str) -> Path:
        """Return the local path of a file or folder that may be remote. Blocking."""
        return self._sources.fetch(uri)

    @property
    def workers(self) -> int:
        return self._settings.server.workers

    @property
    def _polls(self) -> bool:
        return self._mode in {"poll", "versions"}

    async def start(self) -> None:
        """Load the required models; a failed one stores its reason in the registry."""
        self.required = self._initial({})  # models required by name, even if the repository cannot be read
        started = perf_counter()
        sources = await in_thread(self._sources.refresh)
        self.fetch_s = perf_counter() - started
        self._discover(sources)
        self._registry.mark_loading(self.required)
        if self._polls:  # before the loads: a file that changes during a load is a change for the first poll
            self._applied = self._observed = await in_thread(lambda: _fingerprints(sources))
        names = [name for name in self.required if name in sources]
        loads = (self._load_with_steps(sources[name], if_absent=True) for name in names)
        for name, outcome in zip(names, await asyncio.gather(*loads, return_exceptions=True), strict=True):
            if isinstance(outcome, Exception):
                self._registry.mark_failed(name, outcome)

    def _discover(self, sources: Mapping[str, ModelSource]) -> None:
        """Register the models of the first read of the repository, and determine the required ones."""
        for source in sources.values():
            self._registry.discover(source)
        self.required = self._initial(sources)
        self._registry.scanned = True

    def _initial(self, sources: Mapping[str, ModelSource]) -> tuple[str, ...]:
        if self._mode != "explicit" or "*" in self._settings.model.load_models:
            return tuple(sources)
        return tuple(dict.fromkeys(self._settings.model.load_models))

    async def poll_forever(self) -> None:
        """Poll for ever in the polling modes; errors are logged, and the next poll retries."""
        while self._polls:
            await asyncio.sleep(self._settings.model.poll_secs)
            try:
                await self.poll()
            except LoadFailed as error:
                log("repository.unreadable", f"loaded models keep serving: {error}", level="ERROR")
            except Exception as error:
                log("repository.poll_failed", "polling failed, the next poll retries", level="ERROR", error=error)

    async def poll(self) -> None:
        """Poll once: apply changes since the last applied state that were stable over two polls."""
        if not self._registry.scanned:  # the start could not read the repository: repeat it
            await self.start()
            return
        sources = await in_thread(self._sources.refresh)
        seen = await in_thread(lambda: _fingerprints(sources))
        if self._mode == "versions":
            # The set of models is fixed: new models are ignored, and one whose directory vanished continues to serve.
            seen = {name: seen.get(name, applied) for name, applied in self._applied.items()}
        changes = settled_changes(self._applied, self._observed, seen)
        self._observed = seen
        for name in changes.removed:
            del self._applied[name]
            await self._registry.unload(name)
            self._registry.forget(name)
            self._drop_required([name])
        for name in (*changes.added, *changes.changed):
            await self._reload_changed(sources[name], seen[name])
        if not self.required:  # the repository was empty at start: the first models to appear are required
            self.required = changes.added

    def _drop_required(self, names: Collection[str]) -> None:
        """Stop requiring models that an operator removed: readiness does not depend on them."""
        self.required = tuple(other for other in self.required if other not in names)

    async def _reload_changed(self, source: ModelSource, seen: Fingerprint) -> None:
        before = self._applied.get(source.name)
        changed = changed_versions(before, seen) if before else None
        self._applied[source.name] = seen
        try:
            await self._registry.load(source, changed=changed)
        except LoadFailed as error:
            message = f"'{source.name}' was not reloaded, the loaded version keeps serving: {error}"
            log("model.reload_failed", message, level="ERROR", model=source.name)

    async def load(self, name: str, document: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        """Load or reload on request, optionally with another configuration and inline model files."""
        self._check_files(name, document, files)
        self._check_explicit()
        override = _override(name, document) if document is not None else None
        if files:
            await self._load_inline(name, override, files)
        else:
            await self._load_with_steps(await self._find(name), override)

    async def _load_inline(self, name: str, override: ModelConfig | None, files: Mapping[str, bytes]) -> None:
        from tempfile import mkdtemp

        root = Path(mkdtemp(prefix="pilotlight-inline-"))
        try:
            source = await in_thread(lambda: _inline_source(root / name, name, files))
            await self._load_with_steps(source, override)
        except BaseException:
            _remove_tree(root)
            raise
        self._drop_inline(name)
        self._inline[name] = root

    async def unload(self, name: str, dependents: bool) -> None:
        self._check_explicit()
        unloaded = await self._registry.unload(name, dependents)
        for each in unloaded:
            self._drop_inline(each)
        self._drop_required(unloaded)

    def _drop_inline(self, name: str) -> None:
        root = self._inline.pop(name, None)
        if root is not None:
            _remove_tree(root)

    def close(self) -> None:
        for name in list(self._inline):
            self._drop_inline(name)

    def _check_files(self, name: str, document: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        if not valid_model_name(name):  # files would be written outside of their folder
            raise BadRequest(f"model name {name[:100]!r} is not valid: it must be one path segment")
        if files and not self._settings.model.allow_inline_files:
            raise Forbidden("parameters: this server does not accept model files in a request (--allow-inline-files)")
        if files and document is None:
            raise BadRequest("parameters.config is required with files")

    def _check_explicit(self) -> None:
        if self._mode != "explicit":
            raise BadRequest(
                "explicit model load / unload is not allowed if polling is enabled or models are fixed at start;"
                " use --model-control-mode=explicit"
            )

    async def _find(self, name: str) -> ModelSource:
        sources = await in_thread(self._sources.refresh)
        if not self._registry.scanned:
            self._discover(sources)
        if name not in sources:
            raise NotFound(f"failed to load '{name}': it is in none of the model repositories")
        return sources[name]

    async def _load_with_steps(
        self,
        source: ModelSource,
        override: ModelConfig | None = None,
        above: tuple[str, ...] = (),
        if_absent: bool = False,
    ) -> None:
        """Load a model; in explicit mode an ensemble's steps that are not ready are loaded first."""
        config = override
        with suppress(PredictorError):  # reported by the load itself
            config = config or await in_thread(lambda: check_source(source))
        parts = {step.model for step in config.ensemble} if config and self._mode == "explicit" else set()
        for part in sorted(parts - {source.name, *above}):  # the registry refuses an ensemble that contains itself
            if self._registry.is_ready(part):
                continue
            try:
                await self._load_with_steps(await self._find(part), above=(*above, source.name), if_absent=True)
            except PredictorError as error:  # also in the index; the ensemble is loaded but not ready
                message = f"'{part}', a model of the ensemble '{source.name}', was not loaded: {error}"
                log("model.part_failed", message, level="ERROR", model=part, ensemble=source.name)
        await self._registry.load(source, override, if_absent=if_absent)


def _inline_source(directory: Path, name: str, files: Mapping[str, bytes]) -> ModelSource:
    try:
        for path, content in files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:  # only the client's file names can be at fault: one too long, one within another
        raise BadRequest(
            f"failed to load '{name}': parameters: its files cannot be written: {error.strerror}"
        ) from None
    return plain_source(directory, name)


def _remove_tree(root: Path) -> None:
    """Delete a folder. shutil imports three compression libraries: not at module level, for the cold start."""
    import shutil

    shutil.rmtree(root, ignore_errors=True)


def _override(name: str, document: Mapping[str, Any]) -> ModelConfig:
    from msgspec.structs import replace

    from pilotlight_predictor.repository.config_reader import config_from_json

    config = config_from_json(dict(document), "parameters.config")
    if config.name and config.name != name:
        raise BadRequest(f"parameters.config: name = '{config.name}', must be '{name}' as in the path")
    return replace(config, name=name)


def _fingerprints(sources: Mapping[str, ModelSource]) -> dict[str, Fingerprint]:
    return {name: fingerprint(source) for name, source in sources.items()}
