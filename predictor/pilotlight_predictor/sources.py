"""Configured model paths and URIs → ModelSource by name. Blocking; runs in a thread."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.logs import log
from pilotlight_predictor.repository.layout import ModelSource, is_repository, plain_source, scan
from pilotlight_predictor.settings import Settings

Fetch = Callable[[str], Path]


class ModelSources:
    """`fetch` downloads one remote model, `sync` a whole remote repository; both return the local directory."""

    def __init__(self, settings: Settings, fetch: Fetch, sync: Fetch) -> None:
        self._path = settings.model.path
        self._name = settings.model.name
        self._version = settings.model.version
        self._labels = settings.model.version_labels
        self._repositories = settings.model.repositories
        self._fetch = fetch
        self._sync = sync
        self._warned: set[tuple[str, str]] = set()

    def refresh(self) -> dict[str, ModelSource]:
        """Return the models that exist now. If two repositories have a model of one name, the first wins."""
        sources: dict[str, ModelSource] = {}
        if self._path:
            sources |= {source.name: source for source in self._from_path(self._fetch(self._path))}
        for repository in self._repositories:
            for source in scan(self._sync(repository)):
                if source.name in sources:
                    self._warn_shadowed(source.name, repository)
                else:
                    sources[source.name] = source
        return sources

    def _from_path(self, path: Path) -> list[ModelSource]:
        """Return one model under the configured name, or all models of a repository (a service of Triton's format)."""
        if is_repository(path):
            return scan(path)
        source = plain_source(path, self._name or None)
        number = self._labels.get(f"{source.name}/{self._version}", self._labels.get(self._version))
        return [_select_version(source, self._version if number is None else str(number))]

    def _warn_shadowed(self, name: str, repository: str) -> None:
        """Warn once: polling reads the repositories every few seconds."""
        if (name, repository) not in self._warned:
            self._warned.add((name, repository))
            message = f"model '{name}' is in several repositories; that of {repository} is ignored"
            log("model.shadowed", message, level="WARNING", model=name)


def _select_version(source: ModelSource, version: str) -> ModelSource:
    """Serve a file as the given version; of a directory with versions serve that one only.

    A label without a number names a file's only version.
    """
    numbered = version.isascii() and version.isdigit() and len(version) <= 18
    if version == "latest" or (source.plain and version and not version.isdigit()):
        return source
    if not numbered:
        raise LoadFailed(
            f"model.version = '{version}', must be latest or a number (--model-version), or a label (--version-label)"
        )
    number = int(version)
    if source.plain:
        return replace(source, versions={number: source.versions[1]})
    if number not in source.versions:
        known = ", ".join(map(str, sorted(source.versions)))
        raise LoadFailed(f"model.version = {number} is not in {source.model_dir}, which has {known} (--model-version)")
    return replace(source, versions={number: source.versions[number]})
