"""Environment of a container from `env` and `envFrom`, as the kubelet builds it. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight.targets.local.objects import SOURCES, Objects, at, mapping_at

Json = Any
_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_.-][A-Za-z0-9_.-]*)\))")
_ENTRY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# Downward API: every replica is a process of this machine.
_HERE: Final = {"status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1", "spec.nodeName": "localhost"}
_OWN_NAME: Final = ("metadata.name", "metadata.uid")


@dataclass(slots=True)
class Variables:
    """Variables of a container. `own_name` are set to the replica's name at its start; `refused` are problems."""

    values: dict[str, str] = field(default_factory=dict)
    own_name: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def variables_of(
    container: Mapping[str, Json], metadata: Mapping[str, Json], namespace: str, objects: Objects
) -> Variables:
    """Return the variables; `metadata` is the pod template's."""
    env = Variables()
    for source in container.get("envFrom") or ():
        env.values.update(_from_source(source, objects, env.refused))
    for entry in container.get("env") or ():
        name = str(entry["name"])
        if "valueFrom" not in entry:
            env.values[name] = expanded(str(entry.get("value") or ""), env.values)
            continue
        path = str(at(entry, "valueFrom", "fieldRef", "fieldPath") or "")
        if path in _OWN_NAME:
            env.own_name.append(name)
        elif path:
            _put(env, name, _field(path, metadata, namespace), f"{path} has no meaning without a pod; write a value")
        else:
            _from_key(env, name, entry["valueFrom"], objects)
    return env


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)` of known variables, leave others; `$$` is a dollar."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else values.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def _put(env: Variables, name: str, value: str | None, otherwise: str) -> None:
    if value is None:
        env.refused.append(f"env {name}: {otherwise}")
    else:
        env.values[name] = value


def _field(path: str, metadata: Mapping[str, Json], namespace: str) -> str | None:
    if path == "metadata.namespace":
        return namespace
    if entry := _ENTRY.fullmatch(path):
        return str(mapping_at(metadata, entry[1]).get(entry[2], ""))
    return _HERE.get(path)


def _from_key(env: Variables, name: str, source: Mapping[str, Json], objects: Objects) -> None:
    """Set a variable from one entry of a Secret or ConfigMap."""
    source_field = next((each for each in SOURCES if each.endswith("KeyRef") and each in source), "")
    if not source_field:
        _put(env, name, None, f"{next(iter(source), 'valueFrom')} has no meaning here; write a value")
        return
    reference, kind = source[source_field], SOURCES[source_field]
    data = objects.data(kind, str(reference["name"]))
    value = None if data is None else data.get(str(reference["key"]))
    if value is None and reference.get("optional"):
        return
    missing = f"{kind} {reference['name']}" if data is None else f"key {reference['key']} of {kind} {reference['name']}"
    _put(env, name, value, f"{missing} is not among the documents; add it to them, or write a value")


def _from_source(source: Mapping[str, Json], objects: Objects, refused: list[str]) -> Iterator[tuple[str, str]]:
    source_field = "secretRef" if "secretRef" in source else "configMapRef"
    reference, kind = mapping_at(source, source_field), SOURCES[source_field]
    data = objects.data(kind, str(reference.get("name")))
    if data is None and not reference.get("optional"):
        refused.append(f"envFrom: {kind} {reference.get('name')} is not among the documents; add it to them")
    for key, value in (data or {}).items():
        yield f"{source.get('prefix') or ''}{key}", value
