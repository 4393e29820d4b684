"""The environment of a container, as a kubelet would make it from `env` and `envFrom`. Pure; refusals are collected."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight.targets.local.objects import SOURCES, Objects, at, mapping_at

Json = Any
_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
_ENTRY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# Every replica is a process of this machine.
_HERE: Final = {"status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1", "spec.nodeName": "localhost"}
_OWN_NAME: Final = ("metadata.name", "metadata.uid")


@dataclass(slots=True)
class Variables:
    """`own_name` are the variables that hold the replica's name, which only its start can tell."""

    values: dict[str, str] = field(default_factory=dict)
    own_name: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def variables_of(
    container: Mapping[str, Json], metadata: Mapping[str, Json], namespace: str, objects: Objects
) -> Variables:
    """`metadata` is the pod template's."""
    made = Variables()
    for source in container.get("envFrom") or ():
        made.values.update(_whole(source, objects, made.refused))
    for entry in container.get("env") or ():
        name = str(entry["name"])
        if "valueFrom" not in entry:
            made.values[name] = expanded(str(entry.get("value") or ""), made.values)
            continue
        path = str(at(entry, "valueFrom", "fieldRef", "fieldPath") or "")
        if path in _OWN_NAME:
            made.own_name.append(name)
        elif path:
            _put(made, name, _field(path, metadata, namespace), f"{path} has no meaning without a pod; write a value")
        else:
            _from_key(made, name, entry["valueFrom"], objects)
    return made


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` as the value of a variable that is known by then, else as it is; `$$` is a dollar."""

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else values.get(found[2], found[0])

    return _REFERENCE.sub(replaced, text)


def _put(made: Variables, name: str, value: str | None, otherwise: str) -> None:
    if value is None:
        made.refused.append(f"env {name}: {otherwise}")
    else:
        made.values[name] = value


def _field(path: str, metadata: Mapping[str, Json], namespace: str) -> str | None:
    if path == "metadata.namespace":
        return namespace
    if entry := _ENTRY.fullmatch(path):
        return str(mapping_at(metadata, entry[1]).get(entry[2], ""))
    return _HERE.get(path)


def _from_key(made: Variables, name: str, source: Mapping[str, Json], objects: Objects) -> None:
    """One entry of a Secret or ConfigMap."""
    way = next((way for way in SOURCES if way.endswith("KeyRef") and way in source), "")
    if not way:
        _put(made, name, None, f"{next(iter(source), 'valueFrom')} has no meaning here; write a value")
        return
    reference, kind = source[way], SOURCES[way]
    data = objects.data(kind, str(reference["name"]))
    value = None if data is None else data.get(str(reference["key"]))
    if value is None and reference.get("optional"):
        return
    missing = f"{kind} {reference['name']}" if data is None else f"key {reference['key']} of {kind} {reference['name']}"
    _put(made, name, value, f"{missing} is not among the documents; add it to them, or write a value")


def _whole(source: Mapping[str, Json], objects: Objects, refused: list[str]) -> Iterator[tuple[str, str]]:
    way = "secretRef" if "secretRef" in source else "configMapRef"
    reference = mapping_at(source, way)
    data = objects.data(SOURCES[way], str(reference.get("name")))
    if data is None and not reference.get("optional"):
        refused.append(f"envFrom: {SOURCES[way]} {reference.get('name')} is not among the documents; add it to them")
    for key, value in (data or {}).items():
        yield f"{source.get('prefix') or ''}{key}", value
