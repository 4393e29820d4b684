"""Where models come from: paths and URIs of the settings → ModelSource by name. Blocking; runs in a thread."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.logs import log
from pilotlight_predictor.repository.layout import ModelSource, is_repository, plain_source, scan
from pilotlight_predictor.settings import Settings

Fetch = Callable[[str], Path]


class Sources:
    """`fetch` brings one remote model here, `sync` a whole remote repository; both return the local directory."""

    def __init__(self, settings: Settings, fetch: Fetch, sync: Fetch) -> None:
        self._path = settings.model.path
        self._name = settings.model.name
        self._version = settings.model.version
        self._labels = settings.model.version_labels
        self._repositories = settings.model.repositories
        self._fetch = fetch
        self._sync = sync
        self._told: set[tuple[str, str]] = set()

    def refresh(self) -> dict[str, ModelSource]:
        """What is there now. Two repositories with one model name: the first wins, aloud."""
        found: dict[str, ModelSource] = {}
        if self._path:
            found |= {source.name: source for source in self._given(self._fetch(self._path))}
        for repository in self._repositories:
            for source in scan(self._sync(repository)):
                if source.name in found:
                    self._tell(source.name, repository)
                else:
                    found[source.name] = source
        return found

    def _given(self, path: Path) -> list[ModelSource]:
        """One model, by the name that was asked for; or those of a whole repository, each by its own: what a service
        of Triton's format names."""
        if is_repository(path):
            return scan(path)
        source = plain_source(path, self._name or None)
        wish = self._labels.get(f"{source.name}/{self._version}", self._labels.get(self._version))
        return [_of_version(source, self._version if wish is None else str(wish))]

    def _tell(self, name: str, repository: str) -> None:
        """Once: a repository that is polled is read every few seconds."""
        if (name, repository) not in self._told:
            self._told.add((name, repository))
            message = f"model '{name}' is in several repositories; that of {repository} is ignored"
            log("model.shadowed", message, level="WARNING", model=name)


def _of_version(source: ModelSource, wish: str) -> ModelSource:
    """A file is served as the version that was asked for; of a directory with versions that one alone is served.

    A label that stands for no number is the name of a file's only version.
    """
    numbered = wish.isascii() and wish.isdigit() and len(wish) <= 18
    if wish == "latest" or (source.plain and wish and not wish.isdigit()):
        return source
    if not numbered:
        raise LoadFailed(
            f"model.version = '{wish}', must be latest or a number (--model-version), or a label (--version-label)"
        )
    number = int(wish)
    if source.plain:
        return replace(source, versions={number: source.versions[1]})
    if number not in source.versions:
        there = ", ".join(str(version) for version in sorted(source.versions))
        raise LoadFailed(f"model.version = {number} is not in {source.model_dir}, which has {there} (--model-version)")
    return replace(source, versions={number: source.versions[number]})
