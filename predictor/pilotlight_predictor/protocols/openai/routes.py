"""Routes of the OpenAI protocol: models, chat, completions, responses, embeddings, scores; under /v1 and /openai/v1.

/v1/models is a route of KServe's V1 too: protocols/v1.py serves both. User documentation: docs/reference/openai.md.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import time
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from pilotlight.contract import TASK_NOT_SUPPORTED
from pilotlight_predictor.core.generation_params import BadField, TaskNotSupported
from pilotlight_predictor.core.requests import InferRequest, Inputs
from pilotlight_predictor.errors import NoRoute, NotFound, NotReady, PredictorError, Unavailable
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http import startup_responses
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response, valid_text
from pilotlight_predictor.frontends.http.router import Handler, Route, ServingProtocol
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.observability.logs import new_request_id
from pilotlight_predictor.protocols.json_values import LONG, SHORT
from pilotlight_predictor.protocols.openai import adapters
from pilotlight_predictor.protocols.openai.completions import NAME, Bodies, TextGeneration
from pilotlight_predictor.protocols.openai.embeddings import embed
from pilotlight_predictor.protocols.openai.request import (
    TextRequest,
    read_body,
    read_chat,
    read_completion,
    read_embedding,
    read_microservice_chat,
)
from pilotlight_predictor.protocols.openai.response import ChatBodies, CompletionBodies
from pilotlight_predictor.protocols.openai.responses import ResponseBodies, read_response_request, renamed
from pilotlight_predictor.protocols.openai.scores import RankingRequest, rank, read_rerank, read_score
from pilotlight_predictor.protocols.openai.tensors import (
    TextCapabilities,
    chat_inputs,
    needed_outputs,
    prompt_inputs,
    text_capabilities,
)
from pilotlight_predictor.protocols.run_inference import decode_long, off_loop
from pilotlight_predictor.server.handler_context import Server

T = TypeVar("T")
NewBodies = Callable[[str, int, str, bool], Bodies]  # of an id, the time, the model, whether usage is included
STARTED = int(time())

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error_body(error: PredictorError) -> HttpResponse:
    status = error.status
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "model_not_ready" if isinstance(error, Unavailable) else CODES.get(status)
    code = TASK_NOT_SUPPORTED if isinstance(error, TaskNotSupported) else code
    field = getattr(error, "field", "model" if isinstance(error, NotFound) else None)
    if isinstance(error, NoRoute):
        field = code = None
    body = {"message": valid_text(error), "type": kind, "param": valid_text(field) if field else None, "code": code}
    return json_response({"error": body}, status)


def models(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response(model_list(server))


def model_list(server: Server) -> dict[str, Any]:
    newest = (server.registry.newest(name) for name in server.registry.names())
    shown = [served for served in newest if served is not None and capabilities_of(served).any]
    data = [each for served in shown for each in (model_object(served), *adapters.adapter_objects(served, STARTED))]
    return {"object": "list", "data": data}


def model(server: Server, request: HttpRequest) -> HttpResponse:
    name = request.params["model"]
    served = adapters.find(server, name)
    is_adapter = served.name != name
    return json_response(adapters.adapter_object(served, name, STARTED) if is_adapter else model_object(served))


def model_object(served: ModelVersion) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": STARTED, "owned_by": "pilotlight"}


async def chat(server: Server, request: HttpRequest) -> HttpResponse:
    microservice = server.settings.server.microservice
    if microservice:
        life, empty = server.lifecycle, not len(request.body)
        reason = server.visible_reason(request, life.reason)
        error = startup_responses.chat_error(life.state, reason, server.registry.scanned, empty)
        if error is None and not (readiness := server.readiness()).ready:
            reason = server.visible_reason(request, readiness.reason) or readiness.state
            error = startup_responses.ChatError(503, "model_not_ready", reason)
        if error is not None:
            return startup_responses.error_response(error)
    chat_request = await _read(server, request, read_microservice_chat if microservice else read_chat)
    return await _chat(server, request, chat_request, ChatBodies)


async def responses(server: Server, request: HttpRequest) -> HttpResponse:
    try:
        chat_request = await _read(server, request, read_response_request)
        return await _chat(server, request, chat_request, partial(ResponseBodies, chat_request.echoed))
    except BadField as error:
        raise renamed(error) from None


async def _chat(server: Server, request: HttpRequest, chat_request: TextRequest, kind: NewBodies) -> HttpResponse:
    served, capabilities = _find(server, chat_request.model, lambda can: can.chats, "chat")
    chat_request = _with_adapter(served, chat_request)
    names = frozenset(spec.name for spec in served.inputs)
    urls, long = server.settings.server.media_urls, len(request.body) > SHORT
    inputs = await off_loop(server, long, lambda: chat_inputs(chat_request, names, urls))
    return await _generate(server, request, served, capabilities, chat_request, [inputs], kind)


async def completions(server: Server, request: HttpRequest) -> HttpResponse:
    text_request: TextRequest = await _read(server, request, read_completion)
    served, capabilities = _find(server, text_request.model, lambda can: can.completes, "complete text")
    text_request = _with_adapter(served, text_request)
    names = frozenset(spec.name for spec in served.inputs)
    long = len(request.body) > LONG
    prompts = text_request.prompts
    tensors = await off_loop(server, long, lambda: [prompt_inputs(text_request, prompt, names) for prompt in prompts])
    return await _generate(server, request, served, capabilities, text_request, tensors, CompletionBodies)


async def _generate(
    server: Server, request: HttpRequest, served: ModelVersion, can: TextCapabilities, text_request: TextRequest,
    tensors: Sequence[Inputs], kind: NewBodies,
) -> HttpResponse:  # fmt: skip
    outputs, request_id = needed_outputs(served.outputs, can.text), request.header("x-request-id")
    requests = [
        InferRequest(served.name, inputs, outputs=outputs, request_id=request_id, batch_first=True)
        for inputs in tensors
    ]  # fmt: skip
    name = text_request.adapter or served.name
    bodies = kind(new_request_id(), int(time()), name, text_request.include_usage)
    return await TextGeneration(server, request, served, requests, text_request, bodies, can.text, error_body).respond()


def _with_adapter(served: ModelVersion, request: TextRequest) -> TextRequest:
    """Return the request with its adapter as a sampling parameter, if it names one and not its model."""
    if request.model in ("", served.name):
        return request
    sampling = {**request.sampling, adapters.PARAMETER: request.model}
    return msgspec.structs.replace(request, sampling=sampling, adapter=request.model)


async def embeddings(server: Server, request: HttpRequest) -> HttpResponse:
    embedding_request = await _read(server, request, read_embedding)
    served, capabilities = _find(server, embedding_request.model, lambda can: can.embeds is not None, "embed text")
    assert capabilities.embeds is not None
    return await embed(server, request, served, capabilities.embeds, embedding_request)


async def rerank(server: Server, request: HttpRequest) -> HttpResponse:
    return await _rank(server, request, await _read(server, request, read_rerank))


async def score(server: Server, request: HttpRequest) -> HttpResponse:
    return await _rank(server, request, await _read(server, request, read_score))


async def _rank(server: Server, request: HttpRequest, body: RankingRequest) -> HttpResponse:
    served, capabilities = _find(server, body.model, lambda can: can.scores, "score pairs of texts")
    return await rank(server, request, served, capabilities, body)


async def _read(server: Server, request: HttpRequest, read: Callable[[dict[str, Any]], T]) -> T:
    if len(request.body) > SHORT:
        return await decode_long(server, request.body, read_body, read, request.body)
    return read_body(read, request.body)


def _find(
    server: Server, name: str, can: Callable[[TextCapabilities], bool], verb: str
) -> tuple[ModelVersion, TextCapabilities]:
    """Return the named model, or the only one with the capability. Raise BadField or NotReady."""
    if name:
        candidates = [adapters.find(server, name)]
    else:
        newest = [served for each in server.registry.names() if (served := server.registry.newest(each)) is not None]
        candidates = [served for served in newest if can(capabilities_of(served))]
        if not candidates and not (readiness := server.readiness()).ready:
            raise NotReady(f"no model is ready ({readiness.state}); GET /v2/health/ready has the reason")
        if not candidates and len(newest) != 1:
            raise TaskNotSupported(f"no model of this server can {verb}; GET /v2/models lists them")
        candidates = candidates or newest
    if len(candidates) > 1:
        known = ", ".join(served.name for served in candidates[:10])
        raise BadField("model", f"model is missing, must be one of the models that {verb}: {known}")
    (served,) = candidates
    capabilities = capabilities_of(served)
    if not can(capabilities):
        raise not_supported(served, capabilities, verb)
    return served, capabilities


def not_supported(served: ModelVersion, can: TextCapabilities, verb: str) -> TaskNotSupported:
    """Return the error of a request for a task that the model does not have, with a route that it serves."""
    path = quote(served.name, safe="")
    routes = (
        (can.chats and served.chats, "chat: POST /v1/chat/completions"),
        (can.completes, "completions: POST /v1/completions"),
        (can.embeds is not None, "embeddings: POST /v1/embeddings"),
        (can.ranks is not None, "rerank and score: POST /v1/rerank"),
        (bool(served.v1_verbs), f"JSON of its own: POST /v1/models/{path}:predict"),
        (served.decoupled, f"tensors: POST /v2/models/{path}/generate_stream"),
        (True, f"tensors: POST /v2/models/{path}/infer"),
    )
    if verb in ("chat", "complete text") and not (can.chats or can.completes):
        verb = "generate text"
    route = next(text for serves, text in routes if serves)
    if verb == "embed text" and served.config.backend == "python" and not (served.inputs and served.outputs):
        route += '; to embed, declare OUTPUTS = {"embedding": ("FP32", [-1, 64])} in its model.py'
        route += "" if served.inputs else ' and INPUTS = {"text": ("BYTES", [-1])}'
    return TaskNotSupported(f"model '{served.name}' does not {verb}; it serves {route}")


def capabilities_of(served: ModelVersion) -> TextCapabilities:
    return text_capabilities(served.inputs, served.outputs)


def _both(method: str, path: str, handler: Handler, action: Action) -> tuple[Route, ...]:
    return tuple(Route(method, f"{prefix}/{path}", handler, action, hot=True) for prefix in ("/v1", "/openai/v1"))


PROTOCOL = ServingProtocol(
    NAME,
    (
        Route("GET", "/openai/v1/models", models, Action.READ, hot=True),
        Route("GET", "/openai/v1/models/{model}", model, Action.READ, hot=True),
        *_both("POST", "chat/completions", chat, Action.INFER),
        *_both("POST", "completions", completions, Action.INFER),
        *_both("POST", "responses", responses, Action.INFER),
        *_both("POST", "embeddings", embeddings, Action.INFER),
        *_both("POST", "rerank", rerank, Action.INFER),
        *_both("POST", "score", score, Action.INFER),
        Route("POST", "/v1/load_lora_adapter", adapters.load, Action.ADMIN),
        Route("POST", "/v1/unload_lora_adapter", adapters.unload, Action.ADMIN),
        Route("POST", "/v2/rerank", rerank, Action.INFER, hot=True),  # of Cohere's second API
        Route("POST", "/rerank", rerank, Action.INFER, hot=True),
        Route("POST", "/score", score, Action.INFER, hot=True),
    ),
    error_body,
)
