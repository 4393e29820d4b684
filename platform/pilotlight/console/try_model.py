"""Proxy for requests of the console's page to a service, since the page may connect to its own origin only.

The service's response is returned inside JSON, whole or as lines of a stream, so that it is never served as a page or a
script.
"""

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final
from urllib.parse import quote, unquote

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, StreamReader, web
from msgspec import json
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
FORWARDED_HEADERS: Final = ("Content-Type", "Content-Length", HEADER_INFERENCE_LENGTH, "Authorization")
MAX_RESPONSE_BYTES: Final = 8 * 2**20
LINES: Final = "application/x-ndjson"


async def send_request(request: web.Request) -> web.StreamResponse:
    """Send the request to the service, or to `?revision=` alone. Authorization is forwarded: services may need it.

    A client that accepts lines gets the response as it arrives: `{"part": …}`, then what the whole has but its body.
    """
    method = request.headers.get(HEADER_METHOD, "POST")
    if method not in METHODS:
        raise PlatformError(f"{HEADER_METHOD} is {method}, must be GET or POST")
    backend, path = request.app[BACKEND], checked_path(request.match_info["path"])
    status = await backend.call(lambda target: target.status(key_of(request)))
    status = select_revision(status, request.query.get("revision", ""))
    async with backend.open_route(status) as route:
        forwarded = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
        headers = {**route.headers, **forwarded}
        url = f"{route.url.rstrip('/')}/{path}"
        body = request.content if request.can_read_body else None
        async with forward(method, url, headers, body) as forwarded_request:
            if request.headers.get("Accept") == LINES:
                return await _stream(request, forwarded_request)
            parts = [part async for part in forwarded_request.parts()]
            return web.json_response({**forwarded_request.result(), "body": "".join(parts)})


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
        raise NotFound(f"{status.namespace}/{status.name} has no revision {revision} with a URL of its own")
    return replace(status, url=url)


class ForwardedRequest:
    """A request whose response has begun."""

    def __init__(self, response: ClientResponse, began: float) -> None:
        self._response, self._began = response, began

    async def parts(self) -> AsyncIterator[str]:
        """Yield the body as it arrives. Raise PlatformError where it is too long for a page."""
        decoder, size = getincrementaldecoder("utf-8")("replace"), 0
        async for content in self._response.content.iter_any():
            size += len(content)
            if size > MAX_RESPONSE_BYTES:
                message = f"the response is longer than {MAX_RESPONSE_BYTES // 2**20} MiB"
                raise PlatformError(message, "use platformctl infer")
            yield decoder.decode(content)
        yield decoder.decode(b"", final=True)

    def result(self) -> dict[str, Any]:
        return {
            "status": self._response.status,
            "ms": round(1000 * (monotonic() - self._began), 2),
            "cold_start_ms": self._response.headers.get(HEADER_COLD_START, ""),
        }


@asynccontextmanager
async def forward(
    method: str, url: str, headers: dict[str, str], body: StreamReader | None
) -> AsyncIterator[ForwardedRequest]:
    """Send the request, its body as it arrives: many large ones would fill the memory of the control process.

    Raise TimedOut or PlatformError if the service does not respond.
    """
    began = monotonic()
    try:
        async with (
            ClientSession(timeout=TIMEOUT, auto_decompress=True) as client,
            client.request(
                method, URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            yield ForwardedRequest(response, began)
    except TimeoutError:
        raise TimedOut(f"no response within {TIMEOUT.total:g} s") from None
    except ClientError as error:
        raise PlatformError(f"the service is not reachable: {error}") from error


async def _stream(request: web.Request, forwarded: ForwardedRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    try:
        async for part in forwarded.parts():
            await response.write(json.encode({"part": part}) + b"\n")
        await response.write(json.encode(forwarded.result()) + b"\n")
    except (PlatformError, ClientError, TimeoutError) as error:
        await response.write(json.encode({"error": str(error) or "the service stopped responding"}) + b"\n")
    return response
