"""The OpenAI dialect: models, chat and text completions, embeddings; under /v1 and under /openai/v1.

A thin codec: messages and prompts become the inputs of a text model (protocol/openai_tensors.py), what it says becomes
OpenAI's objects (protocol/openai_response.py). /v1/models is KServe's too: routes/v1.py answers both. The page:
docs/openai.md.
"""

from collections.abc import Callable
from time import time
from typing import Any, TypeVar

from pilotlight_predictor import microservice
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import Dialect, Handler, Route
from pilotlight_predictor.errors import NotFound, NotReady, PredictorError, Unavailable
from pilotlight_predictor.generation import BadField
from pilotlight_predictor.inference import InferRequest, Inputs
from pilotlight_predictor.logs import new_request_id
from pilotlight_predictor.protocol.openai_request import (
    TextAsked,
    read_chat,
    read_completion,
    read_embedding,
    read_object,
)
from pilotlight_predictor.protocol.openai_response import Chat, Completion
from pilotlight_predictor.protocol.openai_tensors import Abilities, abilities, chat_inputs, prompt_inputs, wanted
from pilotlight_predictor.protocol.pieces import LONG
from pilotlight_predictor.routes.openai_embed import embed
from pilotlight_predictor.routes.openai_run import NAME, Run
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

T = TypeVar("T")
STARTED = int(time())

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error_body(error: PredictorError) -> Reply:
    """What a client sent may be quoted in it, so it need not be text that JSON can carry."""
    status = error.status
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "model_not_ready" if isinstance(error, Unavailable) else CODES.get(status)
    field = getattr(error, "field", "model" if isinstance(error, NotFound) else None)
    told = {"message": _clean(str(error)), "type": kind, "param": _clean(field) if field else None, "code": code}
    return json_reply({"error": told}, status)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def models(server: Server, _: Call) -> Reply:
    return json_reply(model_list(server))


def model_list(server: Server) -> dict[str, Any]:
    found = (server.registry.newest(name) for name in server.registry.names())
    told = [described(served) for served in found if served is not None and _can(served).any]
    return {"object": "list", "data": told}


def model(server: Server, call: Call) -> Reply:
    return json_reply(described(server.find(call.params["model"])))


def described(served: ServedVersion) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": STARTED, "owned_by": "pilotlight"}


def speaks(served: ServedVersion) -> bool:
    """Whether this dialect can ask the model anything."""
    return _can(served).any


async def chat(server: Server, call: Call) -> Reply:
    if server.settings.server.microservice:
        found = _standing(server, call)
        if found is not None:
            return microservice.reply(found)
    asked = await _read(server, call, read_chat)
    served, can = _find(server, asked.model, lambda can: can.chats, "chats", "messages")
    inputs = chat_inputs(asked, _names(served), server.settings.server.media_urls)
    bodies = Chat(new_request_id(), int(time()), served.name, asked.include_usage)
    requests = [_request(served, can, inputs, call)]
    return await Run(server, call, served, requests, asked, bodies, can.text, error_body).reply()


async def completions(server: Server, call: Call) -> Reply:
    asked: TextAsked = await _read(server, call, read_completion)
    served, can = _find(server, asked.model, lambda can: can.completes, "completes text", "text_input")
    names = _names(served)
    requests = [_request(served, can, prompt_inputs(asked, prompt, names), call) for prompt in asked.prompts]
    bodies = Completion(new_request_id(), int(time()), served.name, asked.include_usage)
    return await Run(server, call, served, requests, asked, bodies, can.text, error_body).reply()


async def embeddings(server: Server, call: Call) -> Reply:
    asked = await _read(server, call, read_embedding)
    served, can = _find(server, asked.model, lambda can: can.embeds is not None, "embeds text", "one text")
    assert can.embeds is not None
    return await embed(server, call, served, can.embeds, asked)


def _standing(server: Server, call: Call) -> microservice.Standing | None:
    life = server.lifecycle
    found = microservice.standing(life.state, life.reason, server.registry.surveyed, not len(call.body))
    if found is not None:
        return found
    verdict = server.readiness()
    return None if verdict.ready else microservice.Standing(503, "model_not_ready", verdict.reason or verdict.state)


async def _read(server: Server, call: Call, read: Callable[[dict[str, Any]], T]) -> T:
    if len(call.body) > LONG:
        return await server.codecs.run(lambda: read(read_object(call.body)))
    return read(read_object(call.body))


def _find(
    server: Server, name: str, can: Callable[[Abilities], bool], does: str, needs: str
) -> tuple[ServedVersion, Abilities]:
    """The model that is named; else the only one that can do it."""
    if not name:
        able = [served for served in _newest(server) if can(_can(served))]
        if not able and not (verdict := server.readiness()).ready:
            raise NotReady(f"no model is ready: {verdict.reason or verdict.state}")
        if len(able) != 1:
            known = ", ".join(served.name for served in able[:10]) or "none here does"
            raise BadField("model", f"model is missing, must be the name of a model that {does}: {known}")
        return able[0], _can(able[0])
    served = server.find(name)
    found = _can(served)
    if not can(found):
        raise BadField("model", f"model '{name}' is none that {does}: it does not take '{needs}' (docs/openai.md)")
    return served, found


def _newest(server: Server) -> list[ServedVersion]:
    return [served for name in server.registry.names() if (served := server.registry.newest(name)) is not None]


def _can(served: ServedVersion) -> Abilities:
    return abilities(served.inputs, served.outputs)


def _names(served: ServedVersion) -> frozenset[str]:
    return frozenset(spec.name for spec in served.inputs)


def _request(served: ServedVersion, can: Abilities, inputs: Inputs, call: Call) -> InferRequest:
    outputs = wanted(served.outputs, can.text)
    request_id = call.header("x-request-id")
    return InferRequest(served.name, inputs, outputs=outputs, request_id=request_id, batch_first=True)


def _both(method: str, path: str, handler: Handler, action: Action) -> tuple[Route, Route]:
    return Route(method, f"/v1/{path}", handler, action), Route(method, f"/openai/v1/{path}", handler, action)


DIALECT = Dialect(
    NAME,
    (
        Route("GET", "/openai/v1/models", models, Action.READ),
        Route("GET", "/openai/v1/models/{model}", model, Action.READ),
        *_both("POST", "chat/completions", chat, Action.INFER),
        *_both("POST", "completions", completions, Action.INFER),
        *_both("POST", "embeddings", embeddings, Action.INFER),
    ),
    error_body,
)
