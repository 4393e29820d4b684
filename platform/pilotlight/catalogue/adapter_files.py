"""Configs and tensor shapes of local adapters and their base models, for the checks of plan/support/adapters.py."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pilotlight.k8s.model_pins import is_local, local_path
from pilotlight.spec.service import Catalogue, ModelFolder, Service

MAX_HEADER: Final = 16 << 20  # bytes; that of an adapter of a 70B model has about 1 MB
ADAPTER_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"


def with_folders(catalogue: Catalogue, services: Iterable[Service]) -> Catalogue:
    """Return the catalogue with what local files say of the services' adapters and of their base models."""
    uris = {uri for service in services if service.adapters for uri in _uris(service, catalogue)}
    local = {uri: local_path(uri) for uri in uris if uri and is_local(uri)}
    folders = {uri: read_folder(path) for uri, path in local.items() if os.path.isdir(path)}
    return replace(catalogue, folders=folders) if folders else catalogue


def _uris(service: Service, catalogue: Catalogue) -> Iterator[str]:
    names = {service.model.name} if service.model is not None else set[str]()
    for weights in catalogue.weights:
        if any(weights["metadata"]["name"] == each.name for each in service.adapters):
            yield str((weights["spec"].get("storage") or {}).get("storageUri", ""))
            names.add((weights["spec"].get("baseModelRef") or {}).get("name", ""))
    yield from (each.uri for each in service.adapters)
    yield from (model.storage_uri for model in catalogue.models if model.name in names)
    yield from (part.model.storage_uri for part in service.components.values() if part.model is not None)


def read_folder(path: str) -> ModelFolder:
    """Return what can be read of a folder; nothing of it is an error here."""
    config = _json(os.path.join(path, ADAPTER_CONFIG)) or _json(os.path.join(path, "config.json"))
    header = _header(os.path.join(path, _WEIGHTS))
    shapes = {name: tuple(each.get("shape", ())) for name, each in header.items() if isinstance(each, dict)}
    return ModelFolder(config, shapes)


def _json(path: str) -> dict[str, Any]:
    with suppress(OSError, ValueError), open(path, "rb") as file:
        value = json.load(file)
        return value if isinstance(value, dict) else {}
    return {}


def _header(path: str) -> dict[str, Any]:
    """Return the header of a safetensors file: shapes by tensor."""
    with suppress(OSError, ValueError), open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        value = json.loads(file.read(size)) if size <= MAX_HEADER else {}
        return value if isinstance(value, dict) else {}
    return {}
