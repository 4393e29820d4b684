"""Files beside a document, which `storageUri` names by a relative path: where they lie, who can read them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotlight.errors import UsageError

if TYPE_CHECKING:
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Target


def located(service: "Service") -> Any:
    """The document's `spec` with such paths absolute: what is kept of it leaves its folder."""
    return _located(service.document.get("spec", {}), "spec", service)


def check(services: "Sequence[Service]", target: "Target | None") -> None:
    """A file beside the document is on this machine; pods of a cluster run elsewhere."""
    if target is None or target.name != "kubernetes":
        return
    for service in services:
        for path, value in _uris(service.document.get("spec") or {}, "spec"):
            if value.startswith(("./", "../")):
                message = f"{service.place(path)}: {path}: {value} lies on this machine, where no pod can read it"
                raise UsageError(message, f"put it into a store: --set {path}=s3://BUCKET/PATH, or pvc://CLAIM/PATH")


def _uris(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _uris(item, f"{path}.{key}")
    elif path.endswith("storageUri") and isinstance(value, str):
        yield path, value


def _located(value: Any, path: str, service: "Service") -> Any:
    """Paths beside the document are absolute from here on: the text leaves its folder."""
    from pilotlight.spec.storage import located

    if isinstance(value, Mapping):
        return {key: _located(item, f"{path}.{key}", service) for key, item in value.items()}
    if isinstance(value, list):
        return [_located(item, f"{path}[{index}]", service) for index, item in enumerate(value)]
    return located(value, service.place(path)) if path.endswith("storageUri") and isinstance(value, str) else value
