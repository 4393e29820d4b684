"""How an inference microservice tells that it cannot answer yet, or never will. Decisions only, standard library only.

Asked by the booting server (app.py) and by the OpenAI routes once those are there. A microservice (--microservice) says
202 while it starts, so that who polls it goes on polling; any other server says 503 with Retry-After.
"""

import json
from typing import Final, NamedTuple

from pilotlight_predictor.calls import Reply
from pilotlight_predictor.lifecycle import State

CHAT_PATHS: Final = frozenset({"/v1/chat/completions", "/openai/v1/chat/completions"})
PATHS: Final = CHAT_PATHS | {
    f"{front}/v1/{what}" for front in ("", "/openai") for what in ("completions", "embeddings")
}  # fmt: skip
STARTING: Final = {State.INITIALIZING: "initializing", State.LOADING: "model_loading"}


class Standing(NamedTuple):
    status: int
    kind: str
    message: str


def standing(state: State, reason: str, surveyed: bool, empty: bool) -> Standing | None:
    """What a microservice answers to a chat instead of an answer; None when it can be asked.

    `surveyed`: whether its models were found, so that what failed is one of them. `empty`: the request has no body.
    """
    if empty:
        return Standing(400, "invalid_request_error", "the body is empty, must be a JSON object")
    if state in STARTING:
        return Standing(202, STARTING[state], f"the server is {state.value}: ask again in a second")
    if state is State.FAILED:
        return Standing(503, "model_load_error" if surveyed else "initialization_error", reason or "the start failed")
    return None


def reply(found: Standing) -> Reply:
    """In OpenAI's shape; whoever may ask again is told when."""
    code = None if found.status == 400 else "model_not_ready"
    told = {"error": {"message": found.message, "type": found.kind, "param": None, "code": code}}
    return Reply(
        found.status, [json.dumps(told).encode()], headers=None if found.status == 400 else {"Retry-After": "1"}
    )


def boot_reply(state: State, reason: str, path: str, body_length: int, microservice: bool) -> Reply | None:
    """Before there are routes: None for what the OpenAI dialect has no word on."""
    if path not in PATHS:
        return None
    found = standing(state, reason, False, not body_length) if microservice and path in CHAT_PATHS else None
    return reply(found or Standing(503, "server_error", f"the server is {state.value}"))
