"""A request to a service, sent for the console's page, which may speak with its own origin only.

What the model answers comes back inside a JSON document: whatever it is, it is never served as a page or a script.
"""

from time import monotonic
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, StreamReader, web
from msgspec.structs import replace

from pilotlight.api.keys import BACKING
from pilotlight.api.services import SERVICE, key_of
from pilotlight.console.gate import PREFIX
from pilotlight.contract import HEADER_COLD_START, HEADER_INFERENCE_LENGTH
from pilotlight.errors import NotFound, PlatformError, TimedOut
from pilotlight.targets.target import ServiceStatus

PATH: Final = f"{PREFIX}{SERVICE}/ask/{{path:v[12]/.*}}"
WAIT: Final = ClientTimeout(total=300.0, sock_connect=10.0)
HEADER_METHOD: Final = "X-Pilotlight-Method"
METHODS: Final = frozenset({"GET", "POST"})
PASSED: Final = ("Content-Type", HEADER_INFERENCE_LENGTH, "Authorization")
LONGEST: Final = 8 * 2**20  # of an answer that somebody shall read


async def ask(request: web.Request) -> web.Response:
    """`?revision=` asks one alone. The caller's own Authorization goes along: services may want a token."""
    method = request.headers.get(HEADER_METHOD, "POST")
    if method not in METHODS:
        raise PlatformError(f"{HEADER_METHOD} is {method}, must be GET or POST")
    backing, path = request.app[BACKING], request.match_info["path"]
    status = meant(await backing.status(key_of(request)), request.query.get("revision", ""))
    async with backing.way(status) as way:
        headers = {**way.headers, **{name: request.headers[name] for name in PASSED if name in request.headers}}
        return web.json_response(await sent(method, f"{way.url.rstrip('/')}/{path}", headers, await request.read()))


def meant(status: ServiceStatus, revision: str) -> ServiceStatus:
    """With the address of that revision alone."""
    if not revision:
        return status
    found = next((each.url for each in status.revisions if each.name == revision and each.url), None)
    if found is None:
        raise NotFound(f"{status.namespace}/{status.name} has no revision {revision} that can be asked alone")
    return replace(status, url=found)


async def sent(method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    began = monotonic()
    try:
        async with (
            ClientSession(timeout=WAIT, auto_decompress=True) as client,
            client.request(method, url, data=body or None, headers=headers, allow_redirects=False) as answer,
        ):
            content = await _bounded(answer.content)
    except TimeoutError:
        raise TimedOut(f"no answer within {WAIT.total:g} s") from None
    except ClientError as error:
        raise PlatformError(f"the service cannot be asked: {error}") from error
    return {
        "status": answer.status,
        "ms": round(1000 * (monotonic() - began), 2),
        "cold_start_ms": answer.headers.get(HEADER_COLD_START, ""),
        "body": content.decode(errors="replace"),
    }


async def _bounded(answer: StreamReader) -> bytes:
    content = bytearray()
    async for piece in answer.iter_any():
        content += piece
        if len(content) > LONGEST:
            raise PlatformError(f"the answer is longer than {LONGEST // 2**20} MiB", "ask with platformctl infer")
    return bytes(content)
