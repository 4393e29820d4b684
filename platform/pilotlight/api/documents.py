"""The API told by itself: /api/v1/openapi.json, and a page on which every route can be tried.

The page is three files of ours, loads nothing from elsewhere and keeps a token only while it is open.
"""

from importlib.resources import files
from typing import Final

from aiohttp import web
from msgspec import json

from pilotlight.api.areas import Area, Route
from pilotlight.api.gates import anybody
from pilotlight.api.keys import SERVED
from pilotlight.api.openapi import document
from pilotlight.errors import NotFound

PAGE: Final = "/api/v1/docs"
FILES: Final = {"docs.js": "text/javascript", "docs.css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
GUARDS: Final = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip


async def openapi(request: web.Request) -> web.Response:
    from pilotlight.microservices.model_requests import schemas

    areas = request.app[SERVED]
    return web.Response(body=json.encode(document(areas, schemas())), content_type="application/json")


async def page(request: web.Request) -> web.Response:
    return _file("docs.html", "text/html")


async def file(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    if name not in FILES:
        raise NotFound(f"the page has no file {name}")
    return _file(name, FILES[name])


def _file(name: str, content_type: str) -> web.Response:
    text = (files("pilotlight.api") / "static" / name).read_text()
    return web.Response(text=text, content_type=content_type, headers=GUARDS)


AREA: Final = Area(
    "documents",
    anybody,
    (
        Route("GET", "/api/v1/openapi.json", openapi, "This document."),
        Route("GET", PAGE, page, "A page on which every route can be tried."),
        Route("GET", f"{PAGE}/{{file}}", file, "What that page consists of."),
    ),
)
