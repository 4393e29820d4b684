"""What every request passes before a handler sees it: the error tree told as JSON, the caller's host, its token."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from msgspec import DecodeError, ValidationError

from pilotlight import __version__
from pilotlight.api.keys import TOKEN
from pilotlight.contract import HEADER_VERSION
from pilotlight.errors import Conflict, InternalError, NotFound, PlatformError, TimedOut, UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN: Final = frozenset({"/healthz"})
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
# The nearest class of the error decides; whatever is not listed was understood and could not be done.
STATUSES: Final[dict[type[PlatformError], int]] = {
    Conflict: 409, NotFound: 404, TimedOut: 504, UsageError: 400, InternalError: 500, PlatformError: 422,
}  # fmt: skip
EXIT_CODES: Final = {400: 2, 401: 1, 403: 1, 404: 3, 405: 2, 413: 2}

log = logging.getLogger("pilotlight.api")


@web.middleware
async def errors_told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The only place that turns an error into a reply; each has the exit code that a command ends with."""
    try:
        response = await handler(request)
    except PlatformError as error:
        response = _told(status_of(error), str(error), error.hint, error.exit_code)
    except (DecodeError, ValidationError) as error:
        response = _told(400, f"the body is not what this route takes: {error}", "", UsageError.exit_code)
    except web.HTTPException as error:
        code = EXIT_CODES.get(error.status, 1)
        response = _told(error.status, f"{request.method} {request.path}: {error.reason}", "", code)
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        message = f"{type(error).__name__} in the control process: {error}"
        response = _told(500, message, "the traceback is in logs/daemon.log", InternalError.exit_code)
    if not response.prepared:
        response.headers[HEADER_VERSION] = __version__
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
async def only_with_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    shown = request.headers.get("Authorization", "").encode()
    if request.path in OPEN or hmac.compare_digest(shown, f"Bearer {request.app[TOKEN]}".encode()):
        return await handler(request)
    return _told(401, "the bearer token is missing or wrong", "it is in the file `token` of the home folder", 1)


def _told(status: int, error: str, hint: str, exit_code: int) -> web.Response:
    return web.json_response({"error": error, "hint": hint, "exit_code": exit_code}, status=status)
