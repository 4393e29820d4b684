"""An object as it was applied, cut out of the one that the cluster shows. Pure.

The API server fills in defaults and other tools write beside us, but it keeps the account of who wrote what in
`metadata.managedFields`. Only what was applied is left here, so that a comparison shows changes of meaning alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight.quantities import number
from pilotlight.targets.kubernetes.cluster import MANAGER

Json = Any
APPLIERS: Final = (MANAGER, "helm")  # a service may have been installed by either
IDENTITY: Final = ("apiVersion", "kind")


def as_applied(document: Mapping[str, Json]) -> dict[str, Json]:
    """With its identity and `status`; an object that nobody of ours has applied keeps its identity only."""
    metadata = document["metadata"]
    accounts = [
        each.get("fieldsV1") or {}
        for each in metadata.get("managedFields") or ()
        if each.get("manager") in APPLIERS and each.get("subresource") in (None, "")
    ]
    owned = _cut(document, _merged(accounts)) if accounts else {}
    named = {name: metadata[name] for name in ("name", "namespace") if name in metadata}
    identity = {name: document[name] for name in IDENTITY}
    own = {name: value for name, value in owned.items() if name not in (*IDENTITY, "metadata", "status")}
    kept = {name: value for name, value in (owned.get("metadata") or {}).items() if name not in named}
    status = {"status": document["status"]} if "status" in document else {}
    return {**identity, "metadata": {**named, **kept}, **own, **status}


def shown(live: Mapping[str, Json], applied: Mapping[str, Json], written: Mapping[str, Json]) -> dict[str, Json]:
    """What was applied, spelled as it was sent, and what became of the fields that somebody has taken over since."""
    return dict(as_written(_with_taken(applied, live, written), written))


def _with_taken(applied: Json, live: Json, written: Json) -> Json:
    if not all(isinstance(each, Mapping) for each in (applied, live, written)):
        return applied
    taken = {name: live[name] for name in written if name in live and name not in applied}
    kept = {name: _with_taken(value, live.get(name), written.get(name)) for name, value in applied.items()}
    return {**kept, **taken}


def as_written(found: Json, written: Json, key: str = "") -> Json:
    """The same, spelled as it was sent where that means the same: the server writes `1` for `1000m`.

    Lists that are owned as a whole come with the defaults of their items, which nobody sent.
    """
    if isinstance(found, Mapping) and isinstance(written, Mapping):
        inner = key if key in ("requests", "limits") else ""
        return {name: as_written(value, written.get(name), inner or name) for name, value in found.items()}
    if isinstance(found, list) and isinstance(written, list) and len(found) == len(written):
        return [_item(one, other, key) for one, other in zip(found, written, strict=True)]
    if isinstance(found, str) and isinstance(written, str) and found != written:
        return written if key in ("requests", "limits", "sizeLimit") and _same_quantity(found, written) else found
    return found


def _item(found: Json, written: Json, key: str) -> Json:
    if isinstance(found, Mapping) and isinstance(written, Mapping):
        found = {name: value for name, value in found.items() if name in written}
    return as_written(found, written, key)


def _same_quantity(one: str, other: str) -> bool:
    return number(one) == number(other) != 0


def _merged(accounts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    merged: dict[str, Json] = {}
    for account in accounts:
        for name, inner in account.items():
            merged[name] = _merged([merged[name], inner]) if name in merged and inner and merged[name] else inner
    return merged


def _cut(value: Json, owned: Mapping[str, Json]) -> Json:
    """`owned` is a tree: `f:name` fields of a map, `k:{…}`, `v:…` and `i:…` items of a list, `.` the thing itself."""
    inner = {name: fields for name, fields in owned.items() if name != "."}
    if not inner:
        return value
    if isinstance(value, Mapping):
        fields = {name.removeprefix("f:"): below for name, below in inner.items() if name.startswith("f:")}
        return {name: _cut(each, fields[name]) for name, each in value.items() if name in fields}
    if isinstance(value, list):
        return [_cut(item, below) for item in value for below in _accounts(item, inner)]
    return value


def _accounts(item: Json, owned: Mapping[str, Json]) -> Iterable[Mapping[str, Json]]:
    """What is owned of this item of a list: at most one entry."""
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
