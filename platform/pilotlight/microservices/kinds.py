"""Kinds of models, as data: parameters, inference protocol, and how outputs are interpreted.

kinds.yaml is the table of kinds and networks. A `parameters.yaml` next to a model overrides it: parameters, labels,
names of outputs, image preprocessing. parameters.py validates requests against a `Schema`.
"""

from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pilotlight.errors import UsageError

FILE: Final = "parameters.yaml"
InferenceProtocol = Literal["chat", "tensors"]


class Parameter(Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter of a request. `role`: its meaning to the model; `sampling`: the command line prompts for it."""

    type: Literal["string", "integer", "number", "boolean", "json"]
    help: str
    role: Literal["", "media", "text"] = ""
    many: bool = False
    default: str | float | int | bool | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    sampling: bool = False


class Preparation(Struct, frozen=True, forbid_unknown_fields=True):
    """Preprocessing of an image: divided by `scale`, minus `mean`, divided by `std`, per channel."""

    size: tuple[int, int] | None = None  # width and height, where the model's shape is dynamic
    scale: float = 255.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


class Schema(Struct, frozen=True):
    """Request schema of one model, and how to interpret its outputs."""

    kind: str
    protocol: InferenceProtocol
    needs: tuple[tuple[str, ...], ...]
    parameters: Mapping[str, Parameter]
    labels: tuple[str, ...] = ()
    outputs: Mapping[str, str] = {}  # the model's names of boxes, scores, classes …
    prepare: Preparation = Preparation()


class _Kind(Struct, frozen=True, forbid_unknown_fields=True):
    protocol: InferenceProtocol
    takes: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...] = ()
    change: Mapping[str, Mapping[str, Any]] = {}


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    parameters: Mapping[str, Parameter]
    kinds: Mapping[str, _Kind]
    archs: Mapping[str, str]


class _Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """A model's own file; `parameters` are added to those of its kind, or replace them."""

    kind: str = ""
    parameters: Mapping[str, Parameter] = {}
    without: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] | None = None
    labels: tuple[str, ...] = ()
    outputs: Mapping[str, str] = {}
    prepare: Preparation = Preparation()


def schema(network_arch: str, declared: str = "") -> Schema:
    """Return the schema of a network. `declared`: text of the model's parameters.yaml, or empty."""
    own = _read(declared) if declared.strip() else _Declaration()
    kind = own.kind or _table().archs.get(network_arch, network_arch)
    if kind not in _table().kinds:
        raise UsageError(
            f"network_arch = {network_arch}: no kind of model is known for it; put a {FILE} with its `kind` beside the"
            f" model: {', '.join(_table().kinds)}"
        )
    base = _kind_schema(kind)
    inherited = {name: each for name, each in base.parameters.items() if name not in own.without}
    needs = base.needs if own.needs is None else own.needs
    return msgspec.structs.replace(
        base,
        parameters={**inherited, **own.parameters},
        needs=_known_needs(needs, inherited.keys() | own.parameters.keys()),
        labels=own.labels,
        outputs=own.outputs,
        prepare=own.prepare,
    )


def _known_needs(needs: tuple[tuple[str, ...], ...], known: Set[str]) -> tuple[tuple[str, ...], ...]:
    """Return the required parameters without those that the model does not have."""
    left = (tuple(name for name in names if name in known) for names in needs)
    return tuple(names for names in left if names)


def read_declaration(model: Path) -> str:
    """Return the text of parameters.yaml of a model on this machine, or empty."""
    folder = model if model.is_dir() else model.parent
    try:
        return (folder / FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def networks() -> tuple[str, ...]:
    return tuple(sorted({*_table().kinds, *_table().archs}))


@cache
def _table() -> _Table:
    return msgspec.yaml.decode((Path(__file__).parent / "kinds.yaml").read_bytes(), type=_Table)


@cache
def _kind_schema(kind: str) -> Schema:
    table = _table()
    definition = table.kinds[kind]
    parameters = {
        name: msgspec.structs.replace(table.parameters[name], **definition.change.get(name, {}))
        for name in definition.takes
    }
    return Schema(kind, definition.protocol, definition.needs, parameters)


def _read(text: str) -> _Declaration:
    try:
        return msgspec.yaml.decode(text, type=_Declaration)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{FILE} beside the model: {error}", f"docs/media.md says what {FILE} holds") from error
