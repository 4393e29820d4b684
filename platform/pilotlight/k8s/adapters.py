"""LoRA adapters of a workload, as JSON in its annotation `pilotlight.dev/adapters`: written by plan, read by targets.

Of an engine that loads adapters while it runs they are not part of the pod template, so that other adapters are no new
revision.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight.errors import PlatformError
from pilotlight.k8s.names import DOMAIN

ANNOTATION_ADAPTERS: Final = f"{DOMAIN}/adapters"


class Adapter(Struct, frozen=True, omit_defaults=True):
    """An adapter under its name in requests. Two of one name share its requests by `percent`."""

    name: str
    model: str  # name that its engine knows
    uri: str = ""
    fields: str = ""  # JSON fields that select it, for an engine that has no name for it
    digest: str = ""  # of its pinned content
    dynamic: bool = False  # loaded into running replicas
    percent: int = 100
    rank: int = 0  # 0: unknown
    base_fields: str = ""  # JSON fields of requests for the base model, for an engine that applies adapters to all


def engine_name(name: str, uri: str, digest: str) -> str:
    """Return the name of an adapter's content, so that an engine can have the old and the new one at once."""
    return f"{name}-{hashlib.sha256(f'{uri} {digest}'.encode()).hexdigest()[:8]}"


def encode(adapters: Iterable[Adapter]) -> str:
    return msgspec.json.encode(tuple(adapters)).decode()


def decode(annotations: Mapping[str, Any]) -> tuple[Adapter, ...]:
    """Return the adapters by the annotations of a workload's manifest. Raise PlatformError."""
    text = str(annotations.get(ANNOTATION_ADAPTERS) or "[]")
    try:
        return msgspec.json.decode(text, type=tuple[Adapter, ...])
    except msgspec.MsgspecError as error:
        raise PlatformError(f"annotation {ANNOTATION_ADAPTERS}, which deploy writes, is not valid: {error}") from error


def adapters_of(manifest: Mapping[str, Any]) -> tuple[Adapter, ...]:
    return decode((manifest.get("metadata") or {}).get("annotations") or {})
