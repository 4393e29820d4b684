"""Validation of request parameters against the schema of a model; all problems are reported at once. Pure.

Used before a request is sent to a microservice (the API, `platformctl microservice`) and before a batch job starts.
Values are accepted or rejected, never changed. kinds.py has the schemas.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.kinds import Parameter, Schema, schema

_WORDS: Final = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class ModelRequest(Struct, frozen=True):
    """A valid request. `values` includes defaults."""

    media: tuple[str, ...]
    text: str
    values: Mapping[str, Any]


class InvalidParameters(UsageError):
    """Parameters that do not fit the model: one sentence per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def check(network_arch: str, body: Mapping[str, Any], declared: str = "") -> ModelRequest:
    """Return the validated request. Raise InvalidParameters with all problems."""
    return validate(schema(network_arch, declared), body)


def validate(schema: Schema, body: Mapping[str, Any]) -> ModelRequest:
    if problems := list(_problems(schema, body)):
        raise InvalidParameters(problems)
    defaults = {name: each.default for name, each in schema.parameters.items() if each.default is not None}
    media = [each for name in body if schema.parameters[name].role == "media" for each in _listed(body[name])]
    text = next((value for name, value in body.items() if schema.parameters[name].role == "text"), "")
    return ModelRequest(tuple(media), text, {**defaults, **body})


def _problems(schema: Schema, body: Mapping[str, Any]) -> Iterator[str]:
    for name, value in body.items():
        if name not in schema.parameters:
            known = ", ".join(schema.parameters)
            yield f"{name} is not known to a model of the kind {schema.kind}, must be one of {known}"
        elif reason := _expected(schema.parameters[name], value):
            yield f"{name} = {_shown(value)}, must be {reason}"
    for names in schema.needs:
        if all(body.get(name) in (None, "", []) for name in names):
            yield f"{' or '.join(names)} is missing: {schema.parameters[names[0]].help}"
    texts = [name for name in body if name in schema.parameters and schema.parameters[name].role == "text"]
    if len(texts) > 1:
        yield f"{' and '.join(texts)} mean the same to this model: give one of them"


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
        return (
            isinstance(value, str)
            and (not parameter.choices or value in parameter.choices)
            and (value != "" or not parameter.role)
        )
    if parameter.type == "boolean":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (whole or (parameter.type == "number" and isinstance(value, float))) and _within(parameter, value)


def _within(parameter: Parameter, value: float) -> bool:
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


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
