"""The applied fields of a live object, by `metadata.managedFields`. Pure.

Live objects also have defaults of the API server and fields of other managers; without them a diff shows only changes
of meaning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight.quantities import quantity_or_zero
from pilotlight.targets.kubernetes.cluster import MANAGER

Json = Any
APPLIERS: Final = (MANAGER, "helm")  # a service may be installed by either
IDENTITY: Final = ("apiVersion", "kind")


def applied_fields(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the applied fields with identity and `status`; only these if none was applied by us."""
    metadata = document["metadata"]
    managed = [
        each.get("fieldsV1") or {}
        for each in metadata.get("managedFields") or ()
        if each.get("manager") in APPLIERS and each.get("subresource") in (None, "")
    ]
    owned = _select(document, _merged(managed)) if managed else {}
    named = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    identity = {name: document[name] for name in IDENTITY}
    own = {name: value for name, value in owned.items() if name not in (*IDENTITY, "metadata", "status")}
    own_metadata = {name: value for name, value in (owned.get("metadata") or {}).items() if name not in named}
    status = {"status": document["status"]} if "status" in document else {}
    return {**identity, "metadata": {**named, **own_metadata}, **own, **status}


def as_shown(live: Mapping[str, Json], applied: Mapping[str, Json], written: Mapping[str, Json]) -> dict[str, Json]:
    """Return the applied fields as written, plus live values of fields that another manager has taken over."""
    return dict(as_written(_with_foreign_changes(applied, live, written), written))


def _with_foreign_changes(applied: Json, live: Json, written: Json) -> Json:
    if not all(isinstance(each, Mapping) for each in (applied, live, written)):
        return applied
    foreign = {name: live[name] for name in written if name in live and name not in applied}
    merged = {name: _with_foreign_changes(value, live.get(name), written.get(name)) for name, value in applied.items()}
    return {**merged, **foreign}


def as_written(live: Json, written: Json, key: str = "") -> Json:
    """Return the value in its written spelling where equal: the server normalizes `1000m` to `1`.

    Items of atomic lists include defaults, which are dropped.
    """
    if isinstance(live, Mapping) and isinstance(written, Mapping):
        inner = key if key in ("requests", "limits") else ""
        return {name: as_written(value, written.get(name), inner or name) for name, value in live.items()}
    if isinstance(live, list) and isinstance(written, list) and len(live) == len(written):
        return [_item(one, other, key) for one, other in zip(live, written, strict=True)]
    if isinstance(live, str) and isinstance(written, str) and live != written:
        return written if key in ("requests", "limits", "sizeLimit") and _same_quantity(live, written) else live
    return live


def _item(live: Json, written: Json, key: str) -> Json:
    if isinstance(live, Mapping) and isinstance(written, Mapping):
        live = {name: value for name, value in live.items() if name in written}
    return as_written(live, written, key)


def _same_quantity(one: str, other: str) -> bool:
    return quantity_or_zero(one) == quantity_or_zero(other) != 0


def _merged(managed: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for fields in managed:
        for name, inner in fields.items():
            merged[name] = _merged([merged[name], inner]) if name in merged and inner and merged[name] else inner
    return merged


def _select(value: Json, owned: Mapping[str, Json]) -> Json:
    """Select the owned part of a value by fieldsV1: `f:name` a field, `k:{…}`, `v:…`, `i:…` an item, `.` itself."""
    inner = {name: fields for name, fields in owned.items() if name != "."}
    if not inner:
        return value
    if isinstance(value, Mapping):
        fields = {name.removeprefix("f:"): below for name, below in inner.items() if name.startswith("f:")}
        return {name: _select(each, fields[name]) for name, each in value.items() if name in fields}
    if isinstance(value, list):
        return [_select(item, below) for item in value for below in _item_entries(item, inner)]
    return value


def _item_entries(item: Json, owned: Mapping[str, Json]) -> Iterable[Mapping[str, Json]]:
    """Yield the entry for a list item, at most one."""
    for name, below in owned.items():
        kind, _, text = name.partition(":")
        if kind == "k" and isinstance(item, Mapping):
            wanted = json.decode(text)
            if all(item.get(field) == value for field, value in wanted.items()):
                yield below
                return
        elif kind == "v" and json.decode(text) == item:
            yield {}
            return
