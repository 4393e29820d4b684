"""Requests whose body decides where they go: on the route, by `model` of the one `/v1`, or on the replica, by a prompt.

The body is read as far as the decision needs it; the rest streams to the replica.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode as json_decode

from pilotlight.contract import HEADER_SESSION
from pilotlight.gateway.proxy.backend import MAX_HELD_BODY
from pilotlight.gateway.proxy.model_field import MAX_STEPS, JsonModelField, model_field
from pilotlight.gateway.proxy.model_routes import (
    PATH,
    ROUTES,
    ModelMatch,
    missing_model,
    model_object,
    not_allowed,
    service_keys,
    unknown_model,
    unknown_route,
)
from pilotlight.gateway.proxy.prefix_index import MAX_PROMPT_BYTES, read_prompt
from pilotlight.gateway.proxy.prepare_request import LiveRoute, PreparedRequest, with_headers
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest
from pilotlight.gateway.proxy.responses import (
    BODY_TIMEOUT,
    INTERIM_RESPONSE,
    UNCOUNTED,
    ErrorResponse,
    render_page,
)
from pilotlight.gateway.routing_table import Route, origin_form, tag_of
from pilotlight.wire.http1_strict_parser import CHUNKED, ChunkedBody, unchunked

USAGE_WAIT_S: Final = 60.0  # for a body to which a request of usage is added: a slow client cannot evade it
# Of such a body: clients send `stream` after the messages, whose images are some MiB, but few tokens.
MAX_USAGE_BODY: Final = 16 << 20
USAGE_PATHS: Final = ("/chat/completions", "/completions")  # others report usage without a request
MAX_FIELD: Final = 1 << 12  # bytes of one that is read; engines refuse a longer one
INCLUDE_USAGE: Final = b'"stream_options":{"include_usage":true},'
TRUE: Final = (1, "1", "true", "t", "yes", "y", "on")  # of JSON, as pydantic reads a boolean, and so vLLM and SGLang
ENCODED: Final = ErrorResponse(415, "the body has a content-encoding, so its tokens cannot be counted; send it plain")
ADAPTER_API: Final = ErrorResponse(403, "adapters are loaded by the platform; deploy a manifest that names them")
PROMPT_WAIT_S: Final = 0.05  # for a prompt that arrives after its head
MAX_BODY: Final = 64 << 20  # before the model: clients may send long messages first
FRAMING: Final = ("transfer-encoding", "trailer", "expect")  # headers that a new body makes void
TOO_LONG: Final = ErrorResponse(
    413, f"more than {MAX_BODY >> 20} MiB or {MAX_STEPS} brackets come before the model; send the model first"
)


class RequestFields(Struct):
    """What is read of an OpenAI request, empty if missing: as objects, brackets take thirty times their memory."""

    stream: Raw = Raw()
    stream_options: Raw = Raw()


Action = Callable[[], None]
Continue = Callable[[ProxiedRequest], None]


def serve_models_api(request: ProxiedRequest, submit: Continue) -> None:
    """Serve a request to `/v1`: list the models, or find the model's route in the body and continue with `submit`."""
    path = _path(request)
    if path != PATH and not path.startswith(f"{PATH}/"):
        ModelRouting(request, submit).start()
    elif request.method not in {"GET", "HEAD"}:
        request.reject(not_allowed(path))
    else:
        _list_models(request, unquote(path[len(PATH) + 1 :]))


def _path(request: ProxiedRequest) -> str:
    return origin_form(request.prepared.head.target, "")[0].partition("?")[0].rstrip("/")


def submit_model_request(request: ProxiedRequest) -> None:
    """Submit an admitted request once its body is read as far as its route needs it.

    In this order: its request of usage; the model that it names, which `/v1` has found with the route; its prompt.
    """
    route, head, headers = _route_of(request).route, request.prepared.head, request.prepared.head.headers
    if route.adapters and "load_lora_adapter" in unquote(head.target):  # for the control process alone
        request.cancel(ADAPTER_API)
    elif route.quota and head.upgrade:
        request.cancel(UNCOUNTED)
    elif not route.has_tokens or request.observation is None or request.method != "POST":
        _find_model(request)
    elif headers.get("content-encoding", "identity") != "identity" and (request.prepared.has_prompt or route.quota):
        request.cancel(ENCODED)
    else:
        include_usage(request, _find_model)


def _find_model(request: ProxiedRequest) -> None:
    route = _route_of(request).route
    if request.prepared.names_model and (route.models or route.adapters):
        ModelRouting(request, _choose_replica).start()
    else:
        _choose_replica(request)


def _choose_replica(request: ProxiedRequest) -> None:
    if request.prepared.has_prompt and _route_of(request).has_choice:
        await_prompt(request, _submit)
    else:
        _submit(request)


def _submit(request: ProxiedRequest) -> None:
    request.client.plane.submit(request, _route_of(request), request.prepared.tag)


def _route_of(request: ProxiedRequest) -> LiveRoute:
    assert request.prepared.route is not None
    return request.prepared.route


def _list_models(request: ProxiedRequest, name: str) -> None:
    known, allowed = request.client.plane.routing.models, _permission(request)
    names = known.names(allowed)
    if name and name not in names:
        request.reject(_unknown_model(request, name, allowed))
        return
    listed = [name] if name else [each for each in names if not known.failed(each)]
    models = [model_object(each, known.parent(each)) for each in listed]
    body = json.dumps(models[0] if name else {"object": "list", "data": models}).encode()
    close, bodiless = request.closes_connection(), request.method == "HEAD"
    request.send_response(render_page(200, "application/json", body, close, bodiless))


def _permission(request: ProxiedRequest) -> Callable[[Route], bool]:
    return request.client.plane.admission.allows(request.prepared.head.headers)


def _callable_names(request: ProxiedRequest) -> list[str]:
    return request.client.plane.routing.models.names(_permission(request))


def _unknown_model(request: ProxiedRequest, name: str, allowed: Callable[[Route], bool]) -> ErrorResponse:
    routing = request.client.plane.routing
    services = [routing.routes[key].route for key in service_keys(name) if key in routing.routes]
    service = next((each for each in services if not each.internal and allowed(each)), None)
    return unknown_model(name, routing.models.names(allowed), service)


class ModelRouting:
    """A request until its body has shown its model."""

    def __init__(self, request: ProxiedRequest, submit: Continue) -> None:
        head = request.prepared.head
        self._request, self._submit = request, submit
        self._field = model_field(head.headers)
        self._chunks = ChunkedBody(collect=True) if head.length == CHUNKED else None
        self._match: ModelMatch | None = None  # of a chunked body: a split chooses once for a request

    def start(self) -> None:
        request = self._request
        _request_body(request)
        request.client.on_body = self._read
        self._read(request.body_prefix(sys.maxsize))

    def _read(self, piece: bytes) -> None:
        request = self._request
        if self._chunks is not None:
            self._chunks.feed(piece)
            piece = self._chunks.take_payload()
        if not self._field.done:
            self._field.feed(piece)
        crowded = request.client.plane.buffer_budget.check(request.buffered, growing=True)
        route = request.prepared.route
        # A service at its own address may get a body as it is: most clients use its engine's name of the model.
        optional = route is not None and not route.route.adapters and self._field.name is None
        limit = MAX_BODY
        if optional and route is not None and not route.route.models[1:]:  # its only model may have a tag, or a prefix
            limit = MAX_USAGE_BODY if request.prepared.has_prompt else MAX_HELD_BODY
        too_long = request.buffered > limit or self._field.too_late
        if too_long and not optional:
            request.cancel(TOO_LONG)
        elif crowded and not optional and not request.body_complete and (self._chunks or not self._field.done):
            request.cancel(ErrorResponse(503, crowded, {"Retry-After": "5"}))
        elif self._field.done or request.body_complete or (optional and (too_long or crowded)):
            self._route()
        elif route is None and request.buffered > MAX_HELD_BODY and not (names := _callable_names(request)):
            request.cancel(missing_model(names))  # who may call no model fills no memory
        else:
            request.resume_body()

    def _route(self) -> None:
        request, name = self._request, self._field.name
        request.client.on_body = None
        prepared, routing = request.prepared, request.client.plane.routing
        names: list[str] = []
        match = self._match
        if match is None and prepared.route is not None:
            match = routing.models.find_at(prepared.route.route, name or "")
        elif match is None:
            names = _callable_names(request) if name is None else []
            match = routing.models.find(name) if name is not None else routing.models.only(names)
        renamed = match is not None and (name not in (None, match.engine_name) or bool(match.fields))
        if match is None:
            if name is None and not (request.method == "POST" and _path(request).removeprefix("/v1") in ROUTES):
                request.cancel(unknown_route(request.method, _path(request)))
            elif name is None:
                request.cancel(missing_model(names, self._whole_json() if names else b""))
            else:
                request.cancel(_unknown_model(request, name, _permission(request)))
        elif self._chunks is not None and not request.body_complete and renamed:
            self._match, request.client.on_body = match, self._read  # it gets another length, so all must be there
            request.resume_body()
        else:
            tag = match.tag or prepared.tag or tag_of(prepared.head.headers)
            route = routing.routes.get(match.key, prepared.route)
            request.prepared = prepared._replace(route=route, key=match.key, tag=tag, adapter=match.adapter)
            if request.method == "POST" and name not in (None, match.engine_name):  # what HEAD gets has no body
                request.prepared = request.prepared._replace(renamed=(match.engine_name, name))
            if renamed:
                self._rename(match)
            self._submit(request)

    def _whole_json(self) -> bytes:
        """Return the body if all of it is here and it should be JSON, else nothing."""
        request, headers = self._request, self._request.prepared.head.headers
        encoded = headers.get("content-encoding", "identity") != "identity"
        whole = request.body_complete and request.buffered <= MAX_HELD_BODY
        return _payload(request) if whole and not encoded and isinstance(self._field, JsonModelField) else b""

    def _rename(self, match: ModelMatch) -> None:
        """Replace the model in the body by the name that the engine knows."""
        request, field, length = self._request, self._field, self._request.prepared.head.length
        body = _payload(request)
        if field.name is not None:
            start, end, new = field.start, field.end, field.replacement(match.engine_name, match.fields)
        else:  # the fields alone, for a body without a model
            start = end = body.find(b"{") + 1 if body.lstrip().startswith(b"{") else 0
            new = f"{match.fields},".encode() if start else b""
        length = (len(body) if length == CHUNKED else length) + len(new) - (end - start)
        _rewrite(request, b"".join((body[:start], new, body[end:])), length)


def _request_body(request: ProxiedRequest) -> None:
    """Answer `Expect: 100-continue`: the body is needed here, before a replica could answer."""
    if "expect" in request.prepared.head.headers and not request.body_complete:
        head = with_headers(request.prepared.upstream_head, {}, ("expect",))
        if head != request.prepared.upstream_head:  # else it was answered before
            request.rewrite(head)
            request.forward_interim(INTERIM_RESPONSE)


def _payload(request: ProxiedRequest) -> bytes:
    """Return the body as far as it has come; a chunked one must be complete."""
    body = request.body_prefix(sys.maxsize)
    return unchunked(body) if request.prepared.head.length == CHUNKED else body


def _rewrite(request: ProxiedRequest, body: bytes, length: int) -> None:
    """Replace the body as far as it has come; `length` is that of all of it."""
    request.rewrite(with_headers(request.prepared.upstream_head, {"Content-Length": str(length)}, FRAMING), body)


def include_usage(request: ProxiedRequest, submit: Continue) -> None:
    """Call `submit` once the body is read and a stream's request has `stream_options.include_usage`.

    Engines report the tokens of a stream only on request. A body that is too long stays as it is.
    """
    # Compressed usage is unreadable.
    request.rewrite(with_headers(request.prepared.upstream_head, {}, ("accept-encoding",)))
    if not unquote(request.prepared.head.target.partition("?")[0]).endswith(USAGE_PATHS):
        submit(request)
        return

    def proceed() -> None:
        if request.body_complete:
            _add_usage(request)
        submit(request)

    def suffices() -> bool:
        crowded = request.client.plane.buffer_budget.check(request.buffered, growing=True)
        return bool(crowded) or request.buffered > MAX_USAGE_BODY

    def late() -> None:
        if request.buffered <= MAX_HELD_BODY:
            request.cancel(BODY_TIMEOUT)
        else:
            proceed()

    _request_body(request)
    _await_body(request, suffices, USAGE_WAIT_S, proceed, late)


def _add_usage(request: ProxiedRequest) -> None:
    body = _payload(request)
    try:
        fields = json_decode(body, type=RequestFields)
        stream, options = _value(fields.stream, None), _value(fields.stream_options, UNSET)
    except (ValueError, RecursionError):  # engines in Python read more than JSON, such as NaN and UTF-16
        document = _object_of(body) or {}
        stream, options = document.get("stream"), document.get("stream_options", UNSET)
    if not _is_true(stream):
        return
    if options is UNSET and body.lstrip().startswith(b"{"):
        start = body.index(b"{") + 1
        body = b"".join((body[:start], INCLUDE_USAGE, body[start:]))
    elif changed := _with_usage(body):
        body = changed
    else:
        return
    _rewrite(request, body, len(body))
    request.usage_added = True


def _value(field: Raw, default: Any) -> Any:
    """Return the value of a field, `default` if it is missing, None if it is too long to be read."""
    if not len(field):
        return default
    return json_decode(field) if len(field) <= MAX_FIELD else None


def _with_usage(body: bytes) -> bytes:
    """Return the body of a client that does not want usage, with a request of it; empty: it does, or is not read."""
    document = _object_of(body)
    options = (document or {}).get("stream_options") or {}
    if document is None or not isinstance(options, dict) or _is_true(options.get("include_usage")):
        return b""
    options = {name: value for name, value in options.items() if name != "continuous_usage_stats"}
    return json.dumps({**document, "stream_options": {**options, "include_usage": True}}).encode()


def _object_of(body: bytes) -> dict[str, Any] | None:
    """Return the object of a body; None if it has none, or is so long that reading it would stop all requests."""
    if len(body) > MAX_HELD_BODY:
        return None
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
        return document if isinstance(document, dict) else None
    return None


def _is_true(value: Any) -> bool:
    return (value.lower() if isinstance(value, str) else value) in TRUE


def await_prompt(request: ProxiedRequest, submit: Continue) -> None:
    """Call `submit` with the request's prompt, once enough of the body is there, or after PROMPT_WAIT_S."""

    def proceed() -> None:
        session = request.prepared.head.headers.get(HEADER_SESSION, "")
        body = request.body_prefix(MAX_PROMPT_BYTES)
        request.prompt = read_prompt(body, session, _cached_for(request.prepared, body))
        submit(request)

    _await_body(request, lambda: request.buffered >= MAX_PROMPT_BYTES, PROMPT_WAIT_S, proceed, proceed)


def _await_body(
    request: ProxiedRequest, suffices: Callable[[], bool], wait_s: float, proceed: Action, late: Action
) -> None:
    """Call `proceed` once the body is complete or what is there suffices, or `late` after `wait_s`."""
    client = request.client

    def end(action: Action) -> None:
        if client.request is request:  # else its client has disconnected, or its body is malformed
            client.on_body = None
            action()

    def read(piece: bytes) -> None:
        if request.body_complete or suffices():
            timer.cancel()
            end(proceed)
        else:
            request.resume_body()

    if request.body_complete or suffices():
        end(proceed)
    else:
        timer = asyncio.get_running_loop().call_later(wait_s, end, late)
        client.on_body = read
        request.resume_body()


def _cached_for(prepared: PreparedRequest, body: bytes) -> str:
    """Return the model that a KV cache is of; empty: the route's own. A router knows no names, so the body has it."""
    if prepared.adapter is not None or (prepared.route is not None and prepared.route.route.models):
        return prepared.adapter.model if prepared.adapter is not None else ""
    field = model_field(prepared.head.headers)
    field.feed(body)
    return field.name or ""
