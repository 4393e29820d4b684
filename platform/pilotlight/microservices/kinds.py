"""Kinds of models, as data: which parameters each takes, how it is asked, and how what it says is to be read.

kinds.yaml is the table of kinds and networks. A model's own `parameters.yaml` beside it says what differs: parameters,
labels, names of outputs, how images become numbers. parameters.py holds requests against a `Schema`.
"""

from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pilotlight.errors import UsageError

FILE: Final = "parameters.yaml"
Asking = Literal["chat", "tensors"]


class Parameter(Struct, frozen=True, forbid_unknown_fields=True):
    """`role` is what it is to the model, whatever it is called; `sampling` are those that a person is asked for."""

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
    """How an image becomes numbers: divided by `scale`, then less `mean` and divided by `std`, channel by channel."""

    size: tuple[int, int] | None = None  # width and height, where the model's own shape leaves them open
    scale: float = 255.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


class Schema(Struct, frozen=True):
    """What one model takes, and how what it says is to be read."""

    kind: str
    asked: Asking
    needs: tuple[tuple[str, ...], ...]
    parameters: Mapping[str, Parameter]
    labels: tuple[str, ...] = ()
    outputs: Mapping[str, str] = {}  # boxes, scores, classes …: what the model calls them
    prepare: Preparation = Preparation()


class _Kind(Struct, frozen=True, forbid_unknown_fields=True):
    asked: Asking
    takes: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...] = ()
    change: Mapping[str, Mapping[str, Any]] = {}


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    parameters: Mapping[str, Parameter]
    kinds: Mapping[str, _Kind]
    archs: Mapping[str, str]


class _Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """A model's own file; `parameters` are added to those of its kind, or stand in their place."""

    kind: str = ""
    parameters: Mapping[str, Parameter] = {}
    without: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] | None = None
    labels: tuple[str, ...] = ()
    outputs: Mapping[str, str] = {}
    prepare: Preparation = Preparation()


def schema(network_arch: str, declared: str = "") -> Schema:
    """Of a network; `declared` is the text of the file beside the model, empty where there is none."""
    own = _read(declared) if declared.strip() else _Declaration()
    kind = own.kind or _table().archs.get(network_arch, network_arch)
    if kind not in _table().kinds:
        raise UsageError(
            f"network_arch = {network_arch}: no kind of model is known for it; put a {FILE} with its `kind` beside the"
            f" model: {', '.join(_table().kinds)}"
        )
    base = _of_kind(kind)
    kept = {name: each for name, each in base.parameters.items() if name not in own.without}
    needs = base.needs if own.needs is None else own.needs
    return msgspec.structs.replace(
        base,
        parameters={**kept, **own.parameters},
        needs=_without_strangers(needs, kept.keys() | own.parameters.keys()),
        labels=own.labels,
        outputs=own.outputs,
        prepare=own.prepare,
    )


def _without_strangers(needs: tuple[tuple[str, ...], ...], known: Set[str]) -> tuple[tuple[str, ...], ...]:
    """A request cannot be asked for what the model does not take."""
    left = (tuple(name for name in names if name in known) for names in needs)
    return tuple(names for names in left if names)


def beside(model: Path) -> str:
    """The declaration of a model on this machine: in its folder, or in the folder of its file."""
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
def _of_kind(kind: str) -> Schema:
    table = _table()
    found = table.kinds[kind]
    parameters = {
        name: msgspec.structs.replace(table.parameters[name], **found.change.get(name, {})) for name in found.takes
    }
    return Schema(kind, found.asked, found.needs, parameters)


def _read(text: str) -> _Declaration:
    try:
        return msgspec.yaml.decode(text, type=_Declaration)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{FILE} beside the model: {error}", f"docs/media.md says what {FILE} holds") from error
