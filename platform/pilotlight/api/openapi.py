"""OpenAPI 3.1 document of the areas and the Structs of their routes, and a page on which every route can be tried.

The page is three static files, loads nothing from other hosts and holds a token only while it is open.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import json

from pilotlight import __version__
from pilotlight.api.middlewares import allow_anonymous
from pilotlight.api.route_types import Area, Route
from pilotlight.api.target_adapters import ALL_AREAS, REQUEST_SCHEMAS
from pilotlight.errors import NotFound
from pilotlight.targets.local.client import ErrorBody

Json = Any

PAGE: Final = "/api/v1/docs"
FILES: Final = {"docs.js": "text/javascript", "docs.css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Final = "#/components/schemas/{name}"
PARAMETER: Final = re.compile(r"{(\w+)(?::[^{}]*)?}")
NON_WORD: Final = re.compile(r"\W+")
REASONS: Final = {
    200: "Done.", 201: "Created.", 202: "Not ready yet: retry.", 400: "Invalid request.", 503: "Not ready, or failed.",
}  # fmt: skip


def document(areas: Iterable[Area], requests: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Return the document. `requests`: schemas by name, for routes whose body is passed to a model."""
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
    """Return the schema of each type that a route names, and the components they refer to."""
    routes = [route for area in areas for route in area.routes]
    answers = [each for route in routes for kind in route.responses.values() for each in _alternatives(kind)]
    bodies = [route.body for route in routes if route.body is not None]
    types = list(dict.fromkeys([*bodies, *answers, ErrorBody]))
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    return dict(zip(types, schemas, strict=True)), components


def _plain(path: str) -> str:
    return PARAMETER.sub(r"{\1}", path)


def _operation(area: Area, route: Route, schemas: Mapping[Any, Json], requests: Sequence[str]) -> dict[str, Json]:
    answers = {
        str(status): _response(REASONS.get(status, "Done."), kind, schemas) for status, kind in route.responses.items()
    }
    string = {"schema": {"type": "string"}}
    in_path = [{"name": name, "in": "path", "required": True, **string} for name in PARAMETER.findall(route.path)]
    in_query = [{"name": name, "in": "query", **string} for name in route.query]
    operation: dict[str, Json] = {
        "operationId": NON_WORD.sub("_", f"{route.method.lower()} {_plain(route.path)}").rstrip("_"),
        "summary": route.summary,
        "tags": [area.name],
        "parameters": [*in_path, *in_query],
        "responses": {**answers, "default": _response("Error, with the reason.", ErrorBody, schemas)},
        "security": [] if area.authorizer is allow_anonymous else [{"bearer": []}],
    }
    if route.body is not None:
        content = schemas[route.body]
        if route.model_body and requests:
            content = {"anyOf": [{"$ref": REFERENCE.format(name=name)} for name in requests]}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": content}}}
    return operation


def _response(reason: str, kind: Any, schemas: Mapping[Any, Json]) -> dict[str, Json]:
    alternatives = [schemas[each] for each in _alternatives(kind)]
    if not alternatives:
        return {"description": reason}
    schema = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    return {"description": reason, "content": {"application/json": {"schema": schema}}}


def _alternatives(kind: Any) -> Sequence[Any]:
    """Return the types of one status: several in a tuple, or none for a response without JSON."""
    if isinstance(kind, tuple):
        return kind
    return () if kind is None else (kind,)


async def openapi(request: web.Request) -> web.Response:
    areas, schemas = request.app[ALL_AREAS], request.app[REQUEST_SCHEMAS]()
    return web.Response(body=json.encode(document(areas, schemas)), content_type="application/json")


async def page(request: web.Request) -> web.Response:
    return _file("docs.html", "text/html")


async def file(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    if name not in FILES:
        raise NotFound(f"the page has no file {name}")
    return _file(name, FILES[name])


def _file(name: str, content_type: str) -> web.Response:
    text = (files("pilotlight.api") / "static" / name).read_text()
    return web.Response(text=text, content_type=content_type, headers=SECURITY_HEADERS)


AREA: Final = Area(
    "documents",
    allow_anonymous,
    (
        Route("GET", "/api/v1/openapi.json", openapi, "This document."),
        Route("GET", PAGE, page, "Interactive page of all routes."),
        Route("GET", f"{PAGE}/{{file}}", file, "Files of that page."),
    ),
)
