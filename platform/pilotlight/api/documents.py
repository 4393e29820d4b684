"""The OpenAPI document, /api/v1/openapi.json, and a page on which every route can be tried.

The page is three static files, loads nothing from other hosts and holds a token only while it is open.
"""

from importlib.resources import files
from typing import Final

from aiohttp import web
from msgspec import json

from pilotlight.api.areas import Area, Route
from pilotlight.api.gates import allow_anonymous
from pilotlight.api.keys import ALL_AREAS, REQUEST_SCHEMAS
from pilotlight.api.openapi import document
from pilotlight.errors import NotFound

PAGE: Final = "/api/v1/docs"
FILES: Final = {"docs.js": "text/javascript", "docs.css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip


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
        Route("GET", PAGE, page, "A page on which every route can be tried."),
        Route("GET", f"{PAGE}/{{file}}", file, "Files of that page."),
    ),
)
