"""Responses of a starting or failed server to OpenAI requests. Pure, standard library only.

Used by the booting server and by the OpenAI routes. A microservice (--microservice) responds 202 while it starts, so
that clients continue to poll; any other server responds 503 with Retry-After.
"""

import json
from typing import Final, NamedTuple

from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.server.server_state import ServerState

CHAT_PATHS: Final = frozenset({"/v1/chat/completions", "/openai/v1/chat/completions"})
PATHS: Final = CHAT_PATHS | {
    f"{front}/v1/{what}" for front in ("", "/openai") for what in ("completions", "embeddings")
}  # fmt: skip
STARTING: Final = {ServerState.INITIALIZING: "initializing", ServerState.LOADING: "model_loading"}

BOOT_PAGE: Final = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    b'<meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="1"><title>Starting</title>'
    b"<h1>The server is starting</h1><p>This page refreshes itself.</p></html>"
)


class ChatError(NamedTuple):
    """Error response to a chat completion."""

    status: int
    kind: str
    message: str


def chat_error(state: ServerState, reason: str, scanned: bool, empty: bool) -> ChatError | None:
    """Return a microservice's error response to a chat; None if it can serve.

    `scanned`: the repository was read, so that a failure is one of a model. `empty`: the request has no body.
    """
    if empty:
        return ChatError(400, "invalid_request_error", "the body is empty, must be a JSON object")
    if state in STARTING:
        return ChatError(202, STARTING[state], f"the server is {state.value}: retry in a second")
    if state is ServerState.FAILED:
        return ChatError(503, "model_load_error" if scanned else "initialization_error", reason or "the start failed")
    return None


def error_response(error: ChatError) -> HttpResponse:
    """Build the response in OpenAI's format, with Retry-After where a retry may succeed."""
    code = None if error.status == 400 else "model_not_ready"
    document = {"error": {"message": error.message, "type": error.kind, "param": None, "code": code}}
    return HttpResponse(
        error.status, [json.dumps(document).encode()], headers=None if error.status == 400 else {"Retry-After": "1"}
    )


def boot_response(
    state: ServerState, reason: str, path: str, body_length: int, microservice: bool
) -> HttpResponse | None:
    """Respond before the routes exist; None for paths that are not of the OpenAI protocol."""
    if path not in PATHS:
        return None
    error = chat_error(state, reason, False, not body_length) if microservice and path in CHAT_PATHS else None
    return error_response(error or ChatError(503, "server_error", f"the server is {state.value}"))
