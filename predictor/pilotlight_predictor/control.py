"""Which models shall be served: what is loaded at start, what the poll finds, what an operator's call asks for."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotlight_predictor.errors import BadRequest, LoadFailed, NotFound, PredictorError
from pilotlight_predictor.registry import ModelRegistry
from pilotlight_predictor.repository.changes import Fingerprint, changed_versions, fingerprint, settled_changes
from pilotlight_predictor.repository.layout import ModelSource, check_source, plain_source
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.settings import Settings
from pilotlight_predictor.sources import Sources
from pilotlight_predictor.threads import in_thread

log = logging.getLogger("pilotlight.control")


class ModelControl:
    def __init__(self, settings: Settings, registry: ModelRegistry, sources: Sources) -> None:
        self._mode = settings.model.control_mode
        self._settings = settings
        self._registry = registry
        self._sources = sources
        self._inline: dict[str, Path] = {}
        self.required: tuple[str, ...] = ()
        self._acted: dict[str, Fingerprint] = {}
        self._seen: dict[str, Fingerprint] = {}

    @property
    def may_be_empty(self) -> bool:
        return self._mode == "explicit"

    async def start(self) -> None:
        """Loads what must be there before the server is ready; a model that fails keeps its reason."""
        found = await in_thread(self._sources.refresh)
        for source in found.values():
            self._registry.discover(source)
        names = self._initial(found)
        self.required = names
        loads = (self._load_with_parts(found[name]) for name in names if name in found)
        await asyncio.gather(*loads, return_exceptions=True)
        if self._mode in {"poll", "versions"}:
            self._acted = self._seen = await in_thread(lambda: _fingerprints(found))

    def _initial(self, found: Mapping[str, ModelSource]) -> tuple[str, ...]:
        if self._mode != "explicit" or "*" in self._settings.model.load_models:
            return tuple(found)
        return tuple(dict.fromkeys(self._settings.model.load_models))

    async def follow(self) -> None:
        """Polls for ever; an error of one round is logged and the next round tries again."""
        while self._mode in {"poll", "versions"}:
            await asyncio.sleep(self._settings.model.poll_secs)
            try:
                await self.poll()
            except Exception:
                log.exception("polling the model repository failed; trying again later")

    async def poll(self) -> None:
        """One round: acts on what differs from the last state acted upon and has come to rest."""
        found = await in_thread(self._sources.refresh)
        if self._mode == "versions":
            found = {name: source for name, source in found.items() if name in self._acted}
            found |= {name: source for name, source in self._kept().items() if name not in found}
        seen = await in_thread(lambda: _fingerprints(found))
        changes = settled_changes(self._acted, self._seen, seen)
        self._seen = seen
        for name in changes.removed:
            await self._remove(name)
        for name in (*changes.added, *changes.changed):
            await self._follow_model(found[name], seen[name])

    def _kept(self) -> dict[str, ModelSource]:
        """In `versions` mode a model whose directory vanished keeps its place with no versions."""
        return {name: ModelSource(name, Path(), {}, None) for name in self._acted}

    async def _remove(self, name: str) -> None:
        del self._acted[name]
        await self._registry.unload(name)
        self._registry.forget(name)
        self.required = tuple(other for other in self.required if other != name)

    async def _follow_model(self, source: ModelSource, seen: Fingerprint) -> None:
        before = self._acted.get(source.name)
        changed = changed_versions(before, seen) if before else None
        self._acted[source.name] = seen
        try:
            await self._registry.load(source, changed=changed)
        except LoadFailed as error:
            log.error("'%s' was not reloaded, what served before goes on: %s", source.name, error)

    async def load(self, name: str, document: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None:
        """An operator's call: (re)loads the model, with another configuration or its own files if given."""
        self._check_explicit()
        source = await in_thread(lambda: self._inline_source(name, files) if files else self._find(name))
        override = _override(name, document) if document is not None else None
        await self._load_with_parts(source, override)

    async def unload(self, name: str, dependents: bool) -> None:
        self._check_explicit()
        await self._registry.unload(name, dependents)
        inline = self._inline.pop(name, None)
        if inline is not None:
            await in_thread(lambda: shutil.rmtree(inline, ignore_errors=True))

    def _check_explicit(self) -> None:
        if self._mode != "explicit":
            raise BadRequest(
                "explicit model load / unload is not allowed if polling is enabled or models are fixed at start;"
                " use --model-control-mode=explicit"
            )

    def _find(self, name: str) -> ModelSource:
        source = self._sources.refresh().get(name)
        if source is None:
            raise NotFound(f"failed to load '{name}': it is in none of the model repositories")
        return source

    def _inline_source(self, name: str, files: Mapping[str, bytes]) -> ModelSource:
        root = Path(tempfile.mkdtemp(prefix="pilotlight-inline-"))
        for path, content in files.items():
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        self._inline[name] = root
        return plain_source(root / name, name)

    async def _load_with_parts(self, source: ModelSource, override: ModelConfig | None = None) -> None:
        """An ensemble brings its models with it, whatever the mode."""
        config = override or await in_thread(lambda: _config_or_none(source))
        for part in {step.model for step in config.ensemble} if config else ():
            if self._mode == "explicit" and not self._registry.is_ready(part):
                found = await in_thread(lambda part=part: self._find(part))  # type: ignore[misc]
                await self._load_with_parts(found)
        await self._registry.load(source, override)


def _override(name: str, document: Mapping[str, Any]) -> ModelConfig:
    from dataclasses import replace

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
