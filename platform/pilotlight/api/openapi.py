"""The OpenAPI 3.1 document of the API, made from its table of areas and the Structs that routes name. Pure.

A route that is in the table is in the document: nothing is written twice. `requests` adds what each kind of model may
be asked, which is data and no Struct.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pilotlight import __version__
from pilotlight.api.areas import Area, Route
from pilotlight.api.gates import anybody

Json = Any

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Final = "#/components/schemas/{name}"
PARAMETER: Final = re.compile(r"{(\w+)(?::[^{}]*)?}")
NO_WORD: Final = re.compile(r"\W+")
REASONS: Final = {
    200: "Done.",
    201: "Made.",
    202: "Not yet: ask again.",
    400: "It does not fit.",
    503: "Not ready, or failed.",
}


class Refusal(msgspec.Struct, frozen=True):
    """How an error reads; `exit_code` is what a command ends with that meets it."""

    error: str
    hint: str = ""
    exit_code: int = 1


def document(areas: Iterable[Area], requests: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """`requests`: schemas of request bodies by name, for routes whose body is the model's own."""
    shown = [area for area in areas if not area.internal]
    schemas, components = _schemas(shown)
    paths: dict[str, dict[str, Json]] = {}
    for area in shown:
        for route in area.routes:
            operation = _operation(area, route, schemas, tuple(requests or ()))
            paths.setdefault(_plain(route.path), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {"title": "Pilotlight control API", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, **(requests or {})},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "tags": [{"name": area.name} for area in shown],
    }


def _schemas(areas: Sequence[Area]) -> tuple[dict[Any, Json], dict[str, Json]]:
    """The schema of each type that a route names, and those that they refer to."""
    routes = [route for area in areas for route in area.routes]
    answers = [each for route in routes for kind in route.answers.values() for each in _alternatives(kind)]
    bodies = [route.body for route in routes if route.body is not None]
    types = list(dict.fromkeys([*bodies, *answers, Refusal]))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    return dict(zip(types, schemas, strict=True)), components


def _plain(path: str) -> str:
    return PARAMETER.sub(r"{\1}", path)


def _operation(area: Area, route: Route, schemas: Mapping[Any, Json], requests: Sequence[str]) -> dict[str, Json]:
    answers = {
        str(status): _answer(REASONS.get(status, "Done."), kind, schemas) for status, kind in route.answers.items()
    }
    operation: dict[str, Json] = {
        "operationId": NO_WORD.sub("_", f"{route.method.lower()} {_plain(route.path)}").rstrip("_"),
        "summary": route.summary,
        "tags": [area.name],
        "parameters": [*_in_path(route.path), *_in_query(route.query)],
        "responses": {**answers, "default": _answer("Refused, with the reason.", Refusal, schemas)},
        "security": [] if area.gate is anybody else [{"bearer": []}],
    }
    if route.body is not None:
        content = _models_own(requests) if route.open_body and requests else schemas[route.body]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": content}}}
    return operation


def _models_own(requests: Sequence[str]) -> dict[str, Json]:
    return {"anyOf": [{"$ref": REFERENCE.format(name=name)} for name in requests]}


def _answer(reason: str, kind: Any, schemas: Mapping[Any, Json]) -> dict[str, Json]:
    found = [schemas[each] for each in _alternatives(kind)]
    if not found:
        return {"description": reason}
    schema = found[0] if len(found) == 1 else {"anyOf": found}
    return {"description": reason, "content": {"application/json": {"schema": schema}}}


def _alternatives(kind: Any) -> Sequence[Any]:
    """Several Structs may answer with one status; None is an answer without JSON."""
    if isinstance(kind, tuple):
        return kind
    return () if kind is None else (kind,)


def _in_path(path: str) -> list[dict[str, Json]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in PARAMETER.findall(path)
    ]


def _in_query(names: Sequence[str]) -> list[dict[str, Json]]:
    return [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
