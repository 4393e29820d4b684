"""Calls that concern all workers: HTTP routes and gRPC methods whose handlers forward to the supervisor.

A gRPC call is forwarded as the equivalent HTTP request; its errors get the code of their HTTP status. Requests that
come from the supervisor are served by the unchanged routes.
"""

import base64
import json
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any, Final, NoReturn
from urllib.parse import quote

from pilotlight_predictor.core.protobuf_codec import Message
from pilotlight_predictor.errors import BadRequest, Forbidden, NotFound, PredictorError, Unavailable, Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc.dispatcher import Method, Service, message_handler, unobserved
from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols.v2.grpc import service as grpc_service
from pilotlight_predictor.protocols.v2.grpc.infer_request import read_version
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.workers.parent_channel import ParentChannel

MERGED: Final = {
    "/metrics": "metrics",
    "/status": "status",
    "/v2/models/stats": "statistics",
    "/v2/models/{model}/stats": "statistics",
    "/v2/models/{model}/versions/{version}/stats": "statistics",
    "/v2/repository/index": "index",
    "/v2/repository/{repository}/index": "index",
}
OF_EXECUTIONS: Final = ("/api/status", "/api/profile")  # of the model process: a front executes nothing
CONTROL: Final = ("load", "unload", "park", "wake")  # without a timeout
ERRORS: Final = {error.status: error for error in (BadRequest, Forbidden, NotFound, Unavailable, Unsupported)}
NO_MEMORY: Final = "shared memory needs a single process; start the server with --workers 1"
NO_MEMORY_OF_FRONTS: Final = "shared memory regions need a single process; start the server without --fronts"
NO_TRACES: Final = "request traces need a single process; start the server without --fronts"
NO_ADAPTERS: Final = (
    "loading and unloading adapters needs a single process; start the server with --workers 1, or set the adapters at "
    "start (--adapter)"
)

FanOutMethod = Callable[[ParentChannel, Message], Awaitable[Message]]


def fan_out(
    protocols: tuple[ServingProtocol, ...], channel: ParentChannel, *, fronts: bool = False
) -> tuple[ServingProtocol, ...]:
    """Forward what concerns all workers. `fronts`: the models are in one process of their own (--fronts)."""
    return tuple(
        protocol._replace(routes=tuple(_fan_out_route(route, channel, fronts) for route in protocol.routes))
        for protocol in protocols
    )


def merge_mode(route: Route, *, fronts: bool = False) -> str:
    """Return how the responses are merged; empty if any single worker can respond."""
    if fronts and route.pattern.startswith(OF_EXECUTIONS):
        return "models"
    if "sharedmemory" in route.pattern:
        return "refused"
    if route.pattern.endswith("_lora_adapter"):
        return "adapters"
    if route.pattern in MERGED:
        return MERGED[route.pattern]
    if route.action is not Action.ADMIN:
        return ""
    last = route.pattern.rsplit("/", 1)[-1]
    return last if last in CONTROL else "all"


def _fan_out_route(route: Route, channel: ParentChannel, fronts: bool) -> Route:
    mode = merge_mode(route, fronts=fronts)
    if not mode:
        return route
    refusals = {"refused": NO_MEMORY_OF_FRONTS} if fronts else {"refused": NO_MEMORY, "adapters": NO_ADAPTERS}
    message = NO_TRACES if fronts and "/trace/" in route.pattern else refusals.get(mode)
    handler = _refusing(message) if message else (lambda _, request: channel.request(mode, request))
    return route._replace(handler=handler)


def fan_out_services(
    services: tuple[Service, ...], channel: ParentChannel, *, fronts: bool = False
) -> tuple[Service, ...]:
    return tuple(
        service._replace(methods=tuple(_fan_out_method(method, channel, fronts) for method in service.methods))
        for service in services
    )


def _fan_out_method(method: Method, channel: ParentChannel, fronts: bool) -> Method:
    if "SharedMemory" in method.name:
        return method._replace(unary=_refusing(NO_MEMORY_OF_FRONTS if fronts else NO_MEMORY))
    if fronts and method.name == "TraceSetting":
        return method._replace(unary=_refusing(NO_TRACES))
    fan_out = FAN_OUT_METHODS.get(method.name)
    if fan_out is None:
        return method

    def respond(server: Server, message: Message) -> Awaitable[Message]:
        if method.name == "RepositoryModelLoad":  # the equivalent HTTP request has no name of a repository
            grpc_service.load_arguments(server, message)
        return fan_out(channel, message)

    return method._replace(unary=message_handler(grpc_service.PACKAGE, method.name, respond))


def _refusing(message: str) -> Callable[[Server, HttpRequest], NoReturn]:
    def refuse(_: Server, __: HttpRequest) -> NoReturn:
        raise Unsupported(message)

    return refuse


async def _statistics(channel: ParentChannel, message: Message) -> Message:
    name, version = message.get("name", ""), message.get("version", "")
    if name:
        read_version(version)
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    path = f"/v2/models/{quote(name, safe='')}{of_version}/stats" if name else "/v2/models/stats"
    statistics: Message = await forward(channel, "statistics", "GET", path)
    return statistics


async def _index(channel: ParentChannel, message: Message) -> Message:
    document = {"ready": message.get("ready", False)}
    return {"models": await forward(channel, "index", "POST", "/v2/repository/index", document)}


async def _trace(channel: ParentChannel, message: Message) -> Message:
    settings, name = grpc_service.read_trace_settings(message)
    path = f"/v2/models/{quote(name, safe='')}/trace/setting" if name else "/v2/trace/setting"
    method = "POST" if settings else "GET"
    return grpc_service.trace_settings_message(await forward(channel, "all", method, path, settings or None, name))


async def _logging(channel: ParentChannel, message: Message) -> Message:
    settings = grpc_service.read_log_settings(message)
    method = "POST" if settings else "GET"
    return grpc_service.log_settings_message(await forward(channel, "all", method, "/v2/logging", settings or None))


async def _control(verb: str, outcome: str, channel: ParentChannel, message: Message) -> Message:
    name = grpc_service.model_name(message)
    parameters = {
        key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for key, value in grpc_service.plain_parameters(message).items()
    }
    path = f"/v2/repository/models/{quote(name, safe='')}/{verb}"
    await forward(channel, verb, "POST", path, {"parameters": parameters}, name)
    return {"model_name": name, outcome: True}


async def forward(
    channel: ParentChannel, how: str, method: str, path: str, document: Any = None, model: str = ""
) -> Any:
    """Return the merged response; raise its error."""
    body = b"" if document is None else json.dumps(document).encode()
    forwarded = HttpRequest(method, path, "", {}, body, "", unobserved, perf_counter())
    forwarded.params = {"model": model}
    response = await channel.request(how, forwarded)
    assert isinstance(response.body, list)
    text = b"".join(response.body)
    result: Any = json.loads(text) if text else None
    if response.status != 200:
        raise ERRORS.get(response.status, PredictorError)(result["error"])
    return result


FAN_OUT_METHODS: Final[dict[str, FanOutMethod]] = {
    "ModelStatistics": _statistics,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": partial(_control, "load", "isLoaded"),
    "RepositoryModelUnload": partial(_control, "unload", "isUnloaded"),
    "TraceSetting": _trace,
    "LogSettings": _logging,
}
