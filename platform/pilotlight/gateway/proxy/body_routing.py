"""Requests whose body decides where they go: on the route, by `model` of the one `/v1`, or on the replica, by a prompt.

The body is read as far as the decision needs it; the rest streams to the replica.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from pilotlight.contract import HEADER_SESSION
from pilotlight.gateway.proxy.model_field import model_field
from pilotlight.gateway.proxy.model_routes import (
    PATH,
    ModelMatch,
    missing_model,
    model_list,
    model_object,
    unknown_model,
)
from pilotlight.gateway.proxy.prefix_index import MAX_PROMPT_BYTES, read_prompt
from pilotlight.gateway.proxy.prepare_request import with_headers
from pilotlight.gateway.proxy.proxied_request import MAX_HELD_BODY, ProxiedRequest
from pilotlight.gateway.proxy.responses import (
    INTERIM_RESPONSE,
    METHOD_NOT_ALLOWED,
    ErrorResponse,
    render_page,
)
from pilotlight.gateway.routing_table import Route, origin_form, tag_of
from pilotlight.wire.http1_strict_parser import CHUNKED, ChunkedBody, unchunked

PROMPT_WAIT_S: Final = 0.05  # for a prompt that arrives after its head
MAX_BODY: Final = 64 << 20  # before the model: clients may send long messages first
FRAMING: Final = ("transfer-encoding", "trailer", "expect")  # headers that a new body makes void
TOO_LONG: Final = ErrorResponse(413, f"more than {MAX_BODY >> 20} MiB come before the model; send the model first")

Continue = Callable[[ProxiedRequest], None]


def serve_models_api(request: ProxiedRequest, submit: Continue) -> None:
    """Serve a request to `/v1`: list the models, or find the model's route in the body and continue with `submit`."""
    target, _ = origin_form(request.prepared.head.target, "")
    path = target.partition("?")[0].rstrip("/")
    if path != PATH and not path.startswith(f"{PATH}/"):
        ModelRouting(request, submit).start()
    elif request.method not in {"GET", "HEAD"}:
        request.reject(METHOD_NOT_ALLOWED)
    else:
        _list_models(request, unquote(path[len(PATH) + 1 :]))


def _list_models(request: ProxiedRequest, name: str) -> None:
    names = _callable_names(request)
    if name and name not in names:
        request.reject(unknown_model(name, names))
        return
    body = json.dumps(model_object(name) if name else model_list(names)).encode()
    close, bodiless = request.closes_connection(), request.method == "HEAD"
    request.send_response(render_page(200, "application/json", body, close, bodiless))


def _callable_names(request: ProxiedRequest) -> list[str]:
    plane, headers = request.client.plane, request.prepared.head.headers

    def allowed(route: Route) -> bool:
        return plane.admission.allows(route, headers)

    return plane.routing.models.names(allowed)


class ModelRouting:
    """A request until its body has shown its model."""

    def __init__(self, request: ProxiedRequest, submit: Continue) -> None:
        head = request.prepared.head
        self._request, self._submit = request, submit
        self._field = model_field(head.headers)
        self._chunks = ChunkedBody(collect=True) if head.length == CHUNKED else None

    def start(self) -> None:
        request = self._request
        if "expect" in request.prepared.head.headers and not request.body_complete:
            request.forward_interim(INTERIM_RESPONSE)
        request.client.on_body = self._read
        self._read(request.body_prefix(sys.maxsize))

    def _read(self, piece: bytes) -> None:
        request = self._request
        if self._chunks is not None:
            self._chunks.feed(piece)
            piece = self._chunks.take_payload()
        if not self._field.done:
            self._field.feed(piece)
        if request.buffered > MAX_BODY:
            request.cancel(TOO_LONG)
        elif self._field.done or request.body_complete:
            self._route()
        elif request.buffered > MAX_HELD_BODY and not (names := _callable_names(request)):
            request.cancel(missing_model(names))  # who may call no model fills no memory
        elif problem := request.client.plane.buffer_budget.check(request.buffered):
            request.cancel(ErrorResponse(503, problem, {"Retry-After": "5"}))
        else:
            request.resume_body()

    def _route(self) -> None:
        request, name = self._request, self._field.name
        request.client.on_body = None
        prepared, routing = request.prepared, request.client.plane.routing
        names = _callable_names(request) if name is None else []
        match = routing.models.find(name) if name is not None else routing.models.only(names)
        if match is None:
            error = missing_model(names) if name is None else unknown_model(name, _callable_names(request))
            request.cancel(error)
        elif self._chunks is not None and not request.body_complete and name not in (None, match.engine_name):
            request.client.on_body = self._read  # it gets another length, so all of it must be there
            request.resume_body()
        else:
            tag = match.tag or tag_of(prepared.head.headers)
            request.prepared = prepared._replace(route=routing.routes[match.key], key=match.key, tag=tag)
            if name not in (None, match.engine_name):
                self._rename(match)
            self._submit(request)

    def _rename(self, match: ModelMatch) -> None:
        """Replace the model in the body by the name that the engine knows."""
        request, field, length = self._request, self._field, self._request.prepared.head.length
        body = request.body_prefix(sys.maxsize)
        if length == CHUNKED:
            body = unchunked(body)
            length = len(body)
        new = field.replacement(match.engine_name)
        length += len(new) - (field.end - field.start)
        head = with_headers(request.prepared.upstream_head, {"Content-Length": str(length)}, FRAMING)
        request.rewrite(head, b"".join((body[: field.start], new, body[field.end :])))


def await_prompt(request: ProxiedRequest, submit: Continue) -> None:
    """Call `submit` with the request's prompt, once enough of the body is there, or after PROMPT_WAIT_S."""
    client = request.client

    def proceed() -> None:
        if client.request is request:  # else its client has disconnected, or its body is malformed
            client.on_body = None
            session = request.prepared.head.headers.get(HEADER_SESSION, "")
            request.prompt = read_prompt(request.body_prefix(MAX_PROMPT_BYTES), session)
            submit(request)

    def read(piece: bytes) -> None:
        if request.body_complete or request.buffered >= MAX_PROMPT_BYTES:
            timer.cancel()
            proceed()

    if request.body_complete or request.buffered >= MAX_PROMPT_BYTES:
        proceed()
    else:
        timer = asyncio.get_running_loop().call_later(PROMPT_WAIT_S, proceed)
        client.on_body = read
