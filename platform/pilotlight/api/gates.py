"""What every request passes before a handler sees it: errors told as JSON, the caller's host, the gate of its area."""

import hmac
import logging
from asyncio import IncompleteReadError
from typing import Final

from aiohttp import web
from msgspec import DecodeError, ValidationError

from pilotlight import __version__
from pilotlight.api.areas import Gate, Handler
from pilotlight.api.keys import GATES, TOKEN
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import (
    Conflict,
    InternalError,
    NotFound,
    PlatformError,
    Throttled,
    TimedOut,
    Unauthorized,
    UsageError,
)

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
LARGEST_LOGIN: Final = 4096
EXIT_CODES: Final = {400: 2, 401: 1, 403: 1, 404: 3, 405: 2, 413: 2}

log = logging.getLogger("pilotlight.api")


# The nearest class of the error decides; whatever is not listed was understood and could not be done.
STATUSES: Final[dict[type[PlatformError], int]] = {
    Conflict: 409, NotFound: 404, TimedOut: 504, UsageError: 400, InternalError: 500, Unauthorized: 401,
    Throttled: 429, PlatformError: 422,
}  # fmt: skip


@web.middleware
async def errors_told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The only place that turns an error into a reply; each has the exit code that a command ends with."""
    try:
        response = await handler(request)
    except PlatformError as error:
        response = _refused(error)
    except (DecodeError, ValidationError) as error:
        response = _told(400, f"the body is not what this route takes: {error}", "", UsageError.exit_code)
    except web.HTTPException as error:
        code = EXIT_CODES.get(error.status, 1)
        response = _told(error.status, f"{request.method} {request.path}: {error.reason}", "", code)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        response = _failed(error, shows_admin(request))
    if not response.prepared:
        response.headers[HEADER_VERSION] = __version__
    return response


def _failed(error: Exception, to_admin: bool) -> web.Response:
    """What went wrong may have paths and addresses of this process in it: an org or a stranger is not told."""
    what = f"{type(error).__name__} in the control process: {error}"
    message = what if to_admin else "the control process failed; its log has the reason"
    return _told(500, message, "the traceback is in logs/daemon.log" if to_admin else "", InternalError.exit_code)


def _refused(error: PlatformError) -> web.Response:
    response = _told(status_of(error), str(error), error.hint, error.exit_code)
    if isinstance(error, Throttled):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def status_of(error: PlatformError) -> int:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


@web.middleware
async def only_loopback(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A page in a browser can make its own name resolve to 127.0.0.1, but then the Host header has that name."""
    name, _, port = request.host.rpartition(":")
    if (name if port.isdigit() else request.host).lower() not in LOOPBACK:
        return _told(403, f"Host is {request.host}, must be 127.0.0.1, localhost or [::1]", "", 1)
    return await handler(request)


@web.middleware
async def through_its_gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """By the area of the route; what belongs to none is told only to whoever has the platform's own token."""
    gate: Gate = request.app[GATES].get(request.match_info.route.resource, admin)
    await gate(request)
    return await handler(request)


async def anybody(request: web.Request) -> None:
    """For routes that a caller needs before it can show a token."""


async def admin(request: web.Request) -> None:
    if not shows_admin(request):
        raise Unauthorized("the bearer token is missing or wrong", "it is in the file `token` of the home folder")


def shows_admin(request: web.Request) -> bool:
    """Whether the caller has the platform's own token, which may do everything."""
    shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    return hmac.compare_digest(shown, f"Bearer {request.app[TOKEN]}".encode())


async def small_body(request: web.Request) -> bytes:
    """Of a caller who has shown nothing yet: no more is read, whatever it sends."""
    try:
        await request.content.readexactly(LARGEST_LOGIN + 1)
    except IncompleteReadError as error:
        return error.partial
    raise web.HTTPRequestEntityTooLarge(LARGEST_LOGIN, LARGEST_LOGIN + 1)


def _told(status: int, error: str, hint: str, exit_code: int) -> web.Response:
    return web.json_response({"error": error, "hint": hint, "exit_code": exit_code}, status=status)
