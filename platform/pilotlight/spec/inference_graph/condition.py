"""Conditions of an InferenceGraph: the part of GJSON that KServe's documents use. Pure.

    predictions.0.label           the value exists; a number is an index of a list
    instances.#(intval>10)        an element of a list compares so: == != < <= > >=, % and !% with patterns
    [@this].#(source=="client")   the whole document as the only element of a list

The parser serves validation and the router, which evaluates them as github.com/tidwall/gjson does.
"""

import json
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

Json = Any
SYNTAX: Final = 'a path such as predictions.0, instances.#(intval>10) or [@this].#(source=="client")'
WHOLE: Final = "[@this]"
MAX_LENGTH: Final = 1000
_KEY: Final = r'[^\s.#()\[\]{}|@*?!=<>%~"\\]+'
_VALUE: Final = r'"(?:[^"\\]|\\.)*"|[^\s"()\[\]\\~=<>!%](?:[^"()\[\]\\]*[^\s"()\[\]\\])?'
_PART: Final = re.compile(
    rf"(?P<key>{_KEY})|#\(\s*(?:(?P<path>{_KEY}(?:\.{_KEY})*)\s*)?"
    rf"(?:(?P<operator>==|!=|<=|>=|!%|[=<>%])\s*(?P<value>{_VALUE})\s*)?\)"
)
_MISSING: Final = object()
_COMPARISONS: Final[dict[str, Callable[[Json, Json], bool]]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


class Query(NamedTuple):
    """`#(path operator value)`; without an operator the path must exist, without a path the element is compared."""

    path: tuple[str, ...]
    operator: str
    value: str


Condition = tuple[str | Query, ...]  # keys and queries, WHOLE first or not at all


def parse(text: str) -> Condition:
    """Return the condition. Raise ValueError for any other text, with the syntax."""
    if len(text) > MAX_LENGTH:
        raise ValueError(SYNTAX)
    parts: list[str | Query] = [WHOLE] if text.startswith(WHOLE) else []
    position = len(WHOLE) if parts else -1
    while position < len(text):
        match = _PART.match(text, position + 1)
        dotted = position < 0 or text[position] == "."
        if not dotted or match is None or not (match["key"] or match["path"] or match["operator"]):
            raise ValueError(SYNTAX)
        parts.append(match["key"] or _query(match))
        position = match.end()
    return tuple(parts)


def _query(match: re.Match[str]) -> Query:
    value = match["value"] or ""
    value = json.loads(value) if value.startswith('"') else value
    return Query(tuple((match["path"] or "").split(".")) if match["path"] else (), match["operator"] or "", value)


def holds(condition: Condition, document: Json) -> bool:
    """Return whether the document has a value at the condition's path."""
    return document is not None and _find(condition, document) is not _MISSING


def _find(parts: Condition, value: Json) -> Json:
    for part in parts:
        if part == WHOLE:
            value = [value]
        elif isinstance(part, Query):
            elements = value if isinstance(value, list) else ()
            value = next((element for element in elements if _matches(part, element)), _MISSING)
        elif isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else _MISSING
        else:
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _matches(query: Query, element: Json) -> bool:
    found = _find(query.path, element)
    if found is _MISSING or not query.operator:
        return found is not _MISSING
    if isinstance(found, bool):
        return query.value in ("true", "false") and "%" not in query.operator and (
            _COMPARISONS[query.operator](found, query.value == "true")
        )  # fmt: skip
    if isinstance(found, str):
        if "%" in query.operator:  # * and ? alone are special
            return fnmatchcase(found, query.value.replace("[", "[[]")) != query.operator.startswith("!")
        return _COMPARISONS[query.operator](found, query.value)
    if isinstance(found, int | float) and "%" not in query.operator:
        try:
            return _COMPARISONS[query.operator](found, float(query.value))
        except ValueError:
            return _COMPARISONS[query.operator](found, 0.0)  # as in GJSON
    return False
