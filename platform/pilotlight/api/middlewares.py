"""Middlewares of every request: errors as JSON, loopback hosts only, and the authorizer of the route's area."""

import hmac
import logging
from asyncio import IncompleteReadError
from typing import Final
from urllib.parse import unquote

from aiohttp import web
from msgspec import DecodeError, ValidationError

from pilotlight import __version__
from pilotlight.api.route_types import Handler
from pilotlight.api.target_adapters import ALL_AREAS, AUTHORIZERS, METRICS_TOKEN, TOKEN
from pilotlight.contract import HEADER_USER, HEADER_VERSION
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
from pilotlight.targets.local.control.control_audit import CALLER

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
MAX_LOGIN_BYTES: Final = 4096
MAX_USER: Final = 200
EXIT_CODES: Final = {400: 2, 401: 1, 403: 1, 404: 3, 405: 2, 413: 2}

log = logging.getLogger("pilotlight.api")

# By the nearest class of the error; any other platform error is 422.
STATUSES: Final[dict[type[PlatformError], int]] = {
    Conflict: 409, NotFound: 404, TimedOut: 504, UsageError: 400, InternalError: 500, Unauthorized: 401,
    Throttled: 429, PlatformError: 422,
}  # fmt: skip


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into a response; its body has the exit code for the command line."""
    try:
        if request.headers.get("Content-Encoding", "identity") != "identity":  # unpacking would hold up the event loop
            raise web.HTTPUnsupportedMediaType(reason="send the body without Content-Encoding")
        response = await handler(request)
    except PlatformError as error:
        response = _platform_error(error)
    except (DecodeError, ValidationError, UnicodeDecodeError, RecursionError) as error:
        response = _error_response(400, f"invalid body: {error}", "", UsageError.exit_code)
    except web.HTTPException as error:
        code = EXIT_CODES.get(error.status, 1)
        response = _error_response(error.status, f"{request.method} {request.path}: {error.reason}", "", code)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
    except Exception as error:
        log.exception("%s %s failed", request.method, request.rel_url.raw_path)
        response = _internal_error(error, is_admin(request))
    if not response.prepared:
        response.headers[HEADER_VERSION] = __version__
    return response


def _internal_error(error: Exception, to_admin: bool) -> web.Response:
    """Return a 500; only an admin gets the reason, which may contain paths and addresses of this process."""
    reason = f"{type(error).__name__} in the control process: {error}"
    message = reason if to_admin else "the control process failed; see its log"
    return _error_response(
        500, message, "the traceback is in logs/daemon.log" if to_admin else "", InternalError.exit_code
    )


def _platform_error(error: PlatformError) -> web.Response:
    response = _error_response(status_of(error), str(error), error.hint, error.exit_code)
    if isinstance(error, Throttled):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def status_of(error: PlatformError) -> int:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


@web.middleware
async def loopback_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other Host headers, against DNS rebinding: a web page can make its own name resolve to 127.0.0.1."""
    name, _, port = request.host.rpartition(":")
    if (name if port.isdigit() else request.host).lower() not in LOOPBACK:
        return _error_response(403, f"Host is {request.host}, must be 127.0.0.1, localhost or [::1]", "", 1)
    return await handler(request)


@web.middleware
async def authorization_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Call the authorizer of the route's area; of an unknown path that of the area it would be in."""
    known = request.app[AUTHORIZERS].get(request.match_info.route.resource)
    areas = (each for each in request.app[ALL_AREAS] if each.prefix and request.path.startswith(each.prefix))
    await (known or next((each.authorizer for each in areas), require_admin))(request)
    CALLER.set(unquote(request.headers.get(HEADER_USER, ""))[:MAX_USER])
    return await handler(request)


async def allow_anonymous(request: web.Request) -> None:
    """Authorizer of routes that need no token."""


async def authorize_metrics(request: web.Request) -> None:
    """Beyond loopback, require the admin's token, or the one for scrapes, which opens nothing else."""
    scrapes = request.app.get(METRICS_TOKEN)
    if scrapes is not None and not is_admin(request) and not (scrapes and has_token(request, scrapes)):
        raise Unauthorized("/metrics needs a bearer token", "set one with --metrics-token-file")


async def require_admin(request: web.Request) -> None:
    if not is_admin(request):
        raise Unauthorized("the bearer token is missing or wrong", "it is in the file `token` of the home folder")


def is_admin(request: web.Request) -> bool:
    """Return whether the request has the platform's own token."""
    return has_token(request, request.app[TOKEN])


def has_token(request: web.Request, token: str) -> bool:
    header = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    return hmac.compare_digest(header, f"Bearer {token}".encode())


async def read_small_body(request: web.Request, most: int = MAX_LOGIN_BYTES) -> bytes:
    """Return the body, of a login unless `most` is given. Raise 413 above that many bytes without reading on."""
    try:
        await request.content.readexactly(most + 1)
    except IncompleteReadError as error:
        return error.partial
    raise web.HTTPRequestEntityTooLarge(most, most + 1)


def _error_response(status: int, error: str, hint: str, exit_code: int) -> web.Response:
    return web.json_response({"error": error, "hint": hint, "exit_code": exit_code}, status=status)
