"""Speaks to the server in a microservice: what it says of itself, and one question with its answer.

Our own predictor has /status. Another image is asked an empty chat, to which it answers 202 while it loads.
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

LOOK_S: Final = 5.0
# What our own /status would say, by the error types of a chat.
STATES: Final[Mapping[str, Mapping[str, Json]]] = {
    "initializing": {"state": "initializing"},
    "model_loading": {"state": "loading", "models": True},
    "model_not_ready": {"state": "stopping"},
}


async def self_report(session: "ClientSession", url: str) -> Mapping[str, Json] | None:
    """As our own /status tells it; None: nobody answers yet."""
    try:
        async with session.get(f"{url}/status", timeout=ClientTimeout(total=LOOK_S)) as answer:
            document = asking.parsed(await answer.read()) if answer.status == 200 else None
        return document if isinstance(document, dict) else await _by_chat(session, url)
    except (ClientError, TimeoutError, OSError):
        return None


async def _by_chat(session: "ClientSession", url: str) -> Mapping[str, Json]:
    """Any answer but 202, 429 and 503 shows a server that takes requests, in JSON or in plain words."""
    body: dict[str, Json] = {"messages": []}
    async with session.post(f"{url}{asking.PATH}", json=body, timeout=ClientTimeout(total=LOOK_S)) as answer:
        document = asking.parsed(await answer.read())
    verdict = asking.judge(asking.Reply(answer.status, {}, document))
    if verdict.type in asking.GIVE_UP:
        return {"state": "failed", "reason": verdict.message, "models": verdict.type == "model_load_error"}
    if verdict.kind == "again":
        return STATES.get(verdict.type, STATES["model_loading"])
    return {"state": "ready"}


def brought(
    of: Schema, references: Sequence[str], workspace: Workspace | None, limits: Limits, environ: Mapping[str, str]
) -> Sequence[Media]:
    """Fetched here, or named for a container that takes addresses alone. Blocking."""
    if of.kind not in chat_body.NO_DATA_URLS:
        return fetch(references, workspace, limits, environ=environ)
    return links(references, workspace, limits, environ)
