"""Relative `storageUri` paths of a document: made absolute, and refused for remote targets. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotlight.errors import UsageError

if TYPE_CHECKING:
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Target


def with_absolute_paths(service: "Service") -> Any:
    """Return the document's `spec` with absolute paths: the stored text leaves its folder."""
    return _resolve_paths(service.document.get("spec", {}), "spec", service)


def check_paths_reachable(services: "Sequence[Service]", target: "Target | None") -> None:
    """Raise UsageError for relative paths on a cluster: pods cannot read files of this machine."""
    if target is None or target.name != "kubernetes":
        return
    for service in services:
        for path, value in _uris(service.document.get("spec") or {}, "spec"):
            if value.startswith(("./", "../")):
                message = f"{service.location(path)}: {path}: {value} lies on this machine, where no pod can read it"
                raise UsageError(message, f"put it into a store: --set {path}=s3://BUCKET/PATH, or pvc://CLAIM/PATH")


def _uris(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _uris(item, f"{path}.{key}")
    elif path.endswith("storageUri") and isinstance(value, str):
        yield path, value


def _resolve_paths(value: Any, path: str, service: "Service") -> Any:
    from pilotlight.spec.storage import resolve_uri

    if isinstance(value, Mapping):
        return {key: _resolve_paths(item, f"{path}.{key}", service) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve_paths(item, f"{path}[{index}]", service) for index, item in enumerate(value)]
    return (
        resolve_uri(value, service.location(path)) if path.endswith("storageUri") and isinstance(value, str) else value
    )
