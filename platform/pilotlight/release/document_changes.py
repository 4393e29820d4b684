"""Fields of a service's document that differ between two releases: for `diff`, `history` and `deploy --diff`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight.k8s.model_pins import changed_files, decode
from pilotlight.k8s.names import ANNOTATION_PINS, RELEASE_ANNOTATIONS

if TYPE_CHECKING:
    from pilotlight.release.apply import PreparedRelease
    from pilotlight.targets.target import Key, Release, Target

Json = Any
SHOWN: Final = 60  # characters of a value
_ABSENT: Final = object()


class FieldChange(NamedTuple):
    """A changed field; `old` or `new` is None if it was added or removed. `path` of a model is `model URI`."""

    path: str
    old: Json
    new: Json

    def __str__(self) -> str:
        """`spec.predictor.maxReplicas: 3 → 5`."""
        if self.path.startswith("model "):
            return f"{self.path}: {self.new}"
        return f"{self.path}: {_short(self.old)} → {_short(self.new)}"


def changed_fields(old: "Release | None", new: "Release") -> list[FieldChange]:
    """Return the changes of the document and of its models' files, in the order of the document.

    Without an old release there are none. What a deploy records itself, such as capabilities, is left out.
    """
    if old is None:
        return []
    before, after = _document(old), _document(new)
    return [*_fields("", _without_records(before), _without_records(after)), *_models(before, after)]


def _document(release: "Release") -> Mapping[str, Json]:
    import yaml

    return yaml.safe_load(release.document) or {}


def _without_records(document: Mapping[str, Json]) -> dict[str, Json]:
    metadata = dict(document.get("metadata") or {})
    written = metadata.pop("annotations", None) or {}
    own = {name: text for name, text in written.items() if name not in RELEASE_ANNOTATIONS}
    return {**document, "metadata": {**metadata, **({"annotations": own} if own else {})}}


def _fields(path: str, old: Json, new: Json) -> Iterator[FieldChange]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*new, *(name for name in old if name not in new)]:
            step = f'["{name}"]' if "." in name or "/" in name else f".{name}" if path else name
            yield from _fields(f"{path}{step}", old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif _named(old) and _named(new):  # containers, variables: by their names, as the API server merges them
        yield from _fields(path, {each["name"]: each for each in old}, {each["name"]: each for each in new})
    elif old != new:
        yield FieldChange(path, None if old is _ABSENT else old, None if new is _ABSENT else new)


def _named(items: Json) -> bool:
    return isinstance(items, list) and all(isinstance(each, Mapping) and "name" in each for each in items)


def _models(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[FieldChange]:
    """Yield the models whose files changed under the same URI: `model ./model: ~ model.py`."""
    metadata = (each.get("metadata") or {} for each in (before, after))
    old, new = (decode((each.get("annotations") or {}).get(ANNOTATION_PINS, "")) for each in metadata)
    for uri, pin in new.items():
        if uri in old and old[uri].digest != pin.digest:
            files = ", ".join(changed_files(old[uri], pin)) or f"{old[uri].digest} → {pin.digest}"
            yield FieldChange(f"model {uri}", old[uri].digest, files)


def _short(value: Json) -> str:
    text = "(none)" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


class ServiceChange(NamedTuple):
    """A service whose document changed; without fields: a new one."""

    key: "Key"
    fields: list[FieldChange]


def service_changes(prepared: "Sequence[PreparedRelease]", target: "Target | None") -> list[ServiceChange]:
    """Return the services that are new or whose document differs from that of their newest release."""
    changes = []
    for one in prepared:
        releases = target.releases(one.key) if target is not None and one.release.expected else ()
        fields = changed_fields(releases[0], one.release) if releases else []
        if fields or not releases:
            changes.append(ServiceChange(one.key, fields))
    return changes


def field_lines(changes: Sequence[ServiceChange]) -> list[str]:
    """Return a heading for each service, and its changed fields: `spec.predictor.maxReplicas: 3 → 5`."""
    lines = []
    for (namespace, name), fields in changes:
        count = f"{len(fields)} field{'s' if len(fields) > 1 else ''} changed" if fields else "not deployed yet"
        lines += [f"{namespace}/{name}: {count}", *(f"  {each}" for each in fields)]
    return lines
