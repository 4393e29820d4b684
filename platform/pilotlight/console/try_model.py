"""Proxy for requests of the console's page to a service, since the page may connect to its own origin only.

The service's response is returned inside a JSON document, so that it is never served as a page or a script.
"""

from time import monotonic
from typing import Any, Final
from urllib.parse import quote, unquote

from aiohttp import ClientError, ClientSession, ClientTimeout, StreamReader, web
from msgspec.structs import replace
from yarl import URL

from pilotlight.api.services import SERVICE, key_of
from pilotlight.api.target_adapters import BACKEND
from pilotlight.console.sessions import PREFIX
from pilotlight.contract import HEADER_COLD_START, HEADER_INFERENCE_LENGTH
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.targets.target import ServiceStatus

PATH: Final = f"{PREFIX}{SERVICE}/ask/{{path:v[12]/.*}}"
TIMEOUT: Final = ClientTimeout(total=300.0, sock_connect=10.0)
HEADER_METHOD: Final = "X-Pilotlight-Method"
METHODS: Final = frozenset({"GET", "POST"})
FORWARDED_HEADERS: Final = ("Content-Type", HEADER_INFERENCE_LENGTH, "Authorization")
MAX_RESPONSE_BYTES: Final = 8 * 2**20


async def send_request(request: web.Request) -> web.Response:
    """Send the request to the service, or to `?revision=` alone. Authorization is forwarded: services may need it."""
    method = request.headers.get(HEADER_METHOD, "POST")
    if method not in METHODS:
        raise PlatformError(f"{HEADER_METHOD} is {method}, must be GET or POST")
    backend, path = request.app[BACKEND], checked_path(request.match_info["path"])
    status = await backend.call(lambda target: target.status(key_of(request)))
    status = select_revision(status, request.query.get("revision", ""))
    async with backend.open_route(status) as route:
        forwarded = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
        headers = {**route.headers, **forwarded}
        response = await forward(method, f"{route.url.rstrip('/')}/{path}", headers, await request.read())
        return web.json_response(response)


def checked_path(path: str) -> str:
    """Return a decoded path, quoted once. Raise UsageError for `..`, however encoded, which would leave the service."""
    decoded, before = path, ""
    while decoded != before:
        decoded, before = unquote(decoded), decoded
    if ".." in decoded.replace("\\", "/").split("/"):
        raise UsageError("the path has '..', which would leave the service; write it without")
    return quote(path, safe="/:@!$&'()*+,;=~")


def select_revision(status: ServiceStatus, revision: str) -> ServiceStatus:
    """Return the status with the URL of that revision."""
    if not revision:
        return status
    url = next((each.url for each in status.revisions if each.name == revision and each.url), None)
    if url is None:
        raise NotFound(f"{status.namespace}/{status.name} has no revision {revision} that can be asked alone")
    return replace(status, url=url)


async def forward(method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    began = monotonic()
    try:
        async with (
            ClientSession(timeout=TIMEOUT, auto_decompress=True) as client,
            client.request(
                method, URL(url, encoded=True), data=body or None, headers=headers, allow_redirects=False
            ) as response,
        ):
            content = await _read_limited(response.content)
    except TimeoutError:
        raise TimedOut(f"no response within {TIMEOUT.total:g} s") from None
    except ClientError as error:
        raise PlatformError(f"the service cannot be asked: {error}") from error
    return {
        "status": response.status,
        "ms": round(1000 * (monotonic() - began), 2),
        "cold_start_ms": response.headers.get(HEADER_COLD_START, ""),
        "body": content.decode(errors="replace"),
    }


async def _read_limited(response: StreamReader) -> bytes:
    content = bytearray()
    async for piece in response.iter_any():
        content += piece
        if len(content) > MAX_RESPONSE_BYTES:
            raise PlatformError(
                f"the response is longer than {MAX_RESPONSE_BYTES // 2**20} MiB", "ask with platformctl infer"
            )
    return bytes(content)
