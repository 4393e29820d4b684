"""Kinds of models, as data: parameters, inference protocol, and how outputs are interpreted; validation of requests.

kinds.yaml is the table of kinds and networks. A `parameters.yaml` next to a model overrides it: parameters, labels,
names of outputs, image preprocessing. Values are accepted or rejected, never changed.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import UsageError

FILE: Final = "parameters.yaml"
MAX_BYTES: Final = 1 << 18
BOUNDS: Final = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum"}
_WORDS: Final = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
Json = Any
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

    def parameter_with_role(self, role: str) -> str:
        """Return the name of the parameter with this role, or empty."""
        return next((name for name, each in self.parameters.items() if each.role == role), "")


class ModelRequest(Struct, frozen=True):
    """A valid request. `values` includes defaults."""

    media: tuple[str, ...]
    text: str
    values: Mapping[str, Any]


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


def schema(network_arch: str, declared: str = "", kind: str = "") -> Schema:
    """Return the schema of a network. `declared`: text of the model's parameters.yaml; `kind`: of a network of one's
    own, or a network of that kind. Each may be empty."""
    try:
        own = msgspec.yaml.decode(declared, type=_Declaration) if declared.strip() else _Declaration()
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        hint = f"docs/reference/microservices-api.md describes {FILE}"
        raise UsageError(f"{FILE} beside the model: {error}", hint) from error
    kind = own.kind or kind or network_arch
    kind = _table().archs.get(kind, kind)
    if kind not in _table().kinds:
        raise UsageError(
            f"network_arch = {network_arch}: its kind of model is unknown; set its `kind`, or put a {FILE} with it"
            f" next to the model: {', '.join(_table().kinds)}"
        )
    base = _table().kinds[kind]
    inherited = {name: each for name, each in _kind_parameters(kind).items() if name not in own.without}
    parameters = {**inherited, **own.parameters}
    needs = base.needs if own.needs is None else own.needs
    known_needs = (tuple(name for name in names if name in parameters) for names in needs)
    needs = tuple(names for names in known_needs if names)
    return Schema(kind, base.protocol, needs, parameters, own.labels, own.outputs, own.prepare)


def read_declaration(model: Path) -> str:
    """Return the text of parameters.yaml of a model on this machine, or empty. Raise for one that is no small file.

    An org may have put there what is not its own, by a link, or what blocks the reader, such as a FIFO.
    """
    folder = os.path.realpath(model if model.is_dir() else model.parent)
    path = Path(os.path.realpath(os.path.join(folder, FILE)))
    regular, text = False, b""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            if regular := stat.S_ISREG(os.fstat(file.fileno()).st_mode) and path.is_relative_to(folder):
                text = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise UsageError(f"{FILE} beside the model cannot be read: {error.strerror}") from None
    if not regular or len(text) > MAX_BYTES:
        raise UsageError(f"{FILE} beside the model must be a file of at most {MAX_BYTES} bytes in the model's folder")
    return text.decode(errors="replace")


def networks() -> tuple[str, ...]:
    return tuple(sorted({*_table().kinds, *_table().archs}))


@cache
def _table() -> _Table:
    return msgspec.yaml.decode((Path(__file__).parent / "kinds.yaml").read_bytes(), type=_Table)


@cache
def _kind_parameters(kind: str) -> dict[str, Parameter]:
    table, base = _table(), _table().kinds[kind]
    return {name: replace(table.parameters[name], **base.change.get(name, {})) for name in base.takes}


def validate(schema: Schema, body: Mapping[str, Any]) -> ModelRequest:
    """Return the validated request. Raise UsageError with all problems, a sentence each."""
    if problems := list(_problems(schema, body)):
        raise UsageError("; ".join(problems))
    defaults = {name: each.default for name, each in schema.parameters.items() if each.default is not None}
    references = (value for name, value in body.items() if schema.parameters[name].role == "media")
    media = [each for value in references for each in (value if isinstance(value, list) else [value])]
    text = next((value for name, value in body.items() if schema.parameters[name].role == "text"), "")
    return ModelRequest(tuple(media), text, {**defaults, **body})


def _problems(schema: Schema, body: Mapping[str, Any]) -> Iterator[str]:
    for name, value in body.items():
        if name not in schema.parameters:
            known = ", ".join(schema.parameters)
            yield f"{name} is unknown for a model of kind {schema.kind}, must be one of {known}"
        elif reason := _expected(schema.parameters[name], value):
            text = msgspec.json.encode(value).decode()
            yield f"{name} = {text if len(text) <= 60 else text[:57] + '…'}, must be {reason}"
    for names in schema.needs:
        if all(body.get(name) in (None, "", []) for name in names):
            yield f"{' or '.join(names)} is missing: {schema.parameters[names[0]].help}"
    texts = [name for name in body if name in schema.parameters and schema.parameters[name].role == "text"]
    if len(texts) > 1:
        yield f"{' and '.join(texts)} are equivalent for this model: set one of them"


def _expected(parameter: Parameter, value: Any) -> str:
    """Return what the value must be; empty where it is valid."""
    if parameter.many and isinstance(value, list):
        fits = bool(value) and all(_fits(parameter, each) for each in value)
        return "" if fits else f"{describe(parameter)}, or a list of at least one such"
    return "" if _fits(parameter, value) else describe(parameter) + (", or a list of such" if parameter.many else "")


def _fits(parameter: Parameter, value: Any) -> bool:
    if parameter.type == "json":
        return value is not None
    if parameter.type == "string":
        allowed = not parameter.choices or value in parameter.choices
        return isinstance(value, str) and allowed and (value != "" or not parameter.role)
    if parameter.type == "boolean":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (parameter.type == "number" and isinstance(value, float))):
        return False
    low = parameter.least is None or value >= parameter.least
    high = parameter.most is None or value <= parameter.most
    return low and high and (parameter.above is None or value > parameter.above)


def describe(parameter: Parameter) -> str:
    """Return a description of valid values, such as `a number from 0 to 2`."""
    if parameter.choices:
        return f"one of {', '.join(parameter.choices)}"
    bounds = [f"above {parameter.above:g}"] if parameter.above is not None else []
    if parameter.least is not None and parameter.most is not None:
        bounds.append(f"from {_number(parameter.least)} to {_number(parameter.most)}")
    elif parameter.least is not None:
        bounds.append(f"of {_number(parameter.least)} or more")
    elif parameter.most is not None:
        bounds.append(f"at most {_number(parameter.most)}")
    return " ".join([_WORDS.get(parameter.type, "a JSON value"), " and ".join(bounds)]).strip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def schemas() -> dict[str, Json]:
    """Return JSON Schemas of requests by names such as `Request.classification`, for the OpenAPI document."""
    documents: dict[str, Json] = {}
    for kind in sorted(_table().kinds):
        own = schema(kind)
        needs = [{"anyOf": [{"required": [name]} for name in names]} for names in own.needs]
        documents[f"Request.{kind}"] = {
            "title": f"A request to a model of the kind {kind}",
            "type": "object",
            "properties": {name: _parameter(each) for name, each in own.parameters.items()},
            "additionalProperties": False,
            **({"allOf": needs} if needs else {}),
        }
    return documents


def _parameter(parameter: Parameter) -> dict[str, Json]:
    one: dict[str, Json] = {} if parameter.type == "json" else {"type": parameter.type}
    for field, word in BOUNDS.items():
        value = getattr(parameter, field)
        one |= {word: value} if value is not None else {}
    one |= {"enum": list(parameter.choices)} if parameter.choices else {}
    document = {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]} if parameter.many else one
    default = {"default": parameter.default} if parameter.default is not None else {}
    return {**document, "description": parameter.help, **default}
