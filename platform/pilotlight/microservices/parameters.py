"""Whether a request fits its model: everything wrong is told at once, by name and with what is allowed. Pure.

Asked before a request is sent to a microservice (the API, `platformctl microservice`) and before a batch job starts.
A value is taken as it is or refused, never changed. What a model takes is said in kinds.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.kinds import Parameter, Schema, schema

_WORDS: Final = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class Asked(Struct, frozen=True):
    """A request that fits: `values` has what was given and, for what was not, the defaults."""

    media: tuple[str, ...]
    text: str
    values: Mapping[str, Any]
    given: frozenset[str] = frozenset()


class WrongParameters(UsageError):
    """All that does not fit a model's parameters, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def check(network_arch: str, body: Mapping[str, Any], declared: str = "") -> Asked:
    """The request as the model understands it; raises WrongParameters with everything that does not fit."""
    return fitted(schema(network_arch, declared), body)


def fitted(of: Schema, body: Mapping[str, Any]) -> Asked:
    if problems := list(_problems(of, body)):
        raise WrongParameters(problems)
    told = {name: each.default for name, each in of.parameters.items() if each.default is not None}
    media = [each for name in body if of.parameters[name].role == "media" for each in _listed(body[name])]
    text = next((value for name, value in body.items() if of.parameters[name].role == "text"), "")
    return Asked(tuple(media), text, {**told, **body}, frozenset(body))


def _problems(of: Schema, body: Mapping[str, Any]) -> Iterator[str]:
    for name, value in body.items():
        if name not in of.parameters:
            yield f"{name} is not known to a model of the kind {of.kind}, must be one of {', '.join(of.parameters)}"
        elif reason := _misfit(of.parameters[name], value):
            yield f"{name} = {_shown(value)}, must be {reason}"
    for names in of.needs:
        if not any(_present(body.get(name)) for name in names):
            yield f"{' or '.join(names)} is missing: {of.parameters[names[0]].help}"
    texts = [name for name in body if name in of.parameters and of.parameters[name].role == "text"]
    if len(texts) > 1:
        yield f"{' and '.join(texts)} mean the same to this model: give one of them"


def _present(value: Any) -> bool:
    return value is not None and value != "" and value != []


def _misfit(of: Parameter, value: Any) -> str:
    """What the value must be, where it is not; empty where it fits."""
    if of.many and isinstance(value, list):
        fits = bool(value) and all(_fits(of, each) for each in value)
        return "" if fits else f"{meaning(of)}, or a list of at least one such"
    return "" if _fits(of, value) else meaning(of) + (", or a list of such" if of.many else "")


def _fits(of: Parameter, value: Any) -> bool:
    if of.type == "json":
        return value is not None
    if of.type == "string":
        return isinstance(value, str) and (not of.choices or value in of.choices) and (value != "" or not of.role)
    if of.type == "boolean":
        return isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (whole or (of.type == "number" and isinstance(value, float))) and _within(of, value)


def _within(of: Parameter, value: float) -> bool:
    low = of.least is None or value >= of.least
    high = of.most is None or value <= of.most
    return low and high and (of.above is None or value > of.above)


def meaning(of: Parameter) -> str:
    """`a number from 0 to 2`: what a value must be, in words."""
    if of.choices:
        return f"one of {', '.join(of.choices)}"
    bounds = [f"above {of.above:g}"] if of.above is not None else []
    if of.least is not None and of.most is not None:
        bounds.append(f"from {_number(of.least)} to {_number(of.most)}")
    elif of.least is not None:
        bounds.append(f"of {_number(of.least)} or more")
    elif of.most is not None:
        bounds.append(f"at most {_number(of.most)}")
    return " ".join([_WORDS.get(of.type, "a JSON value"), " and ".join(bounds)]).strip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
