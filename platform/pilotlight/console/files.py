"""The console's page with its scripts and styles: static files."""

from pathlib import Path
from typing import Final

from aiohttp import web

from pilotlight.api.areas import Route

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip


async def page(request: web.Request) -> web.StreamResponse:
    return _file("index.html")


async def file(request: web.Request) -> web.StreamResponse:
    return _file(request.match_info["file"])


def _file(name: str) -> web.FileResponse:
    """Return a static file. Browsers revalidate it each time, so an update shows at once."""
    path = FOLDER / name
    if path.suffix not in TYPES or path.parent != FOLDER or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers={"Content-Type": TYPES[path.suffix], "Cache-Control": "no-cache"})


ROUTES: Final = (
    Route("GET", "/console", page),
    Route("GET", "/console/", page),
    Route("GET", r"/console/static/{file:[a-z_]+\.[a-z]+}", file),
)
