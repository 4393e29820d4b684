"""Status of the server in a microservice, and media of a request to it.

The predictor has /status. Other images get an empty chat request, which they answer with 202 while they load.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, ClientTimeout

from pilotlight.microservices import asking, chat_body
from pilotlight.microservices.kinds import Schema
from pilotlight.microservices.media import Limits, Media, fetch
from pilotlight.microservices.media.links import links
from pilotlight.microservices.model import Workspace

if TYPE_CHECKING:
    from aiohttp import ClientSession

Json = Any

STATUS_TIMEOUT_S: Final = 5.0
# The equivalent of /status, by the error types of a chat.
STATES: Final[Mapping[str, Mapping[str, Json]]] = {
    "initializing": {"state": "initializing"},
    "model_loading": {"state": "loading", "models": True},
    "model_not_ready": {"state": "stopping"},
}


async def server_status(session: "ClientSession", url: str) -> Mapping[str, Json] | None:
    """Return the status in the format of the predictor's /status; None: no response."""
    try:
        async with session.get(f"{url}/status", timeout=ClientTimeout(total=STATUS_TIMEOUT_S)) as response:
            document = asking.parse_body(await response.read()) if response.status == 200 else None
        return document if isinstance(document, dict) else await _probe_by_chat(session, url)
    except (ClientError, TimeoutError, OSError):
        return None


async def _probe_by_chat(session: "ClientSession", url: str) -> Mapping[str, Json]:
    """Derive the status from a chat request: any response but 202, 429 and 503 is one of a ready server."""
    body: dict[str, Json] = {"messages": []}
    async with session.post(
        f"{url}{asking.PATH}", json=body, timeout=ClientTimeout(total=STATUS_TIMEOUT_S)
    ) as response:
        document = asking.parse_body(await response.read())
    verdict = asking.classify(asking.ChatResponse(response.status, {}, document))
    if verdict.type in asking.GIVE_UP:
        return {"state": "failed", "reason": verdict.message, "models": verdict.type == "model_load_error"}
    if verdict.kind == "again":
        return STATES.get(verdict.type, STATES["model_loading"])
    return {"state": "ready"}


def load_media(
    schema: Schema, references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> Sequence[Media]:
    """Fetch media, or return links for a container that fetches them itself. Blocking."""
    if schema.kind not in chat_body.NO_DATA_URLS:
        return fetch(references, workspace, limits, environ=environ)
    return links(references, workspace, limits, environ)
