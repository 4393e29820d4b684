"""`grpc.health.v1.Health`, for probes of Kubernetes and load balancers: the server, a service, or a model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from pilotlight_predictor.core.protobuf_codec import decode, encode
from pilotlight_predictor.errors import NotFound
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc import services
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Messages, Method, Service, UnaryCall
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import ServerState

PACKAGE: Final = "grpc.health.v1"
POLL_S: Final = 0.2  # delay until Watch reports a change


def check(server: Server, request: GrpcRequest) -> bytes:
    name = decode(f"{PACKAGE}.HealthCheckRequest", request.body).get("service", "")
    status = _status(server, name)
    if status == "SERVICE_UNKNOWN":
        raise NotFound(f"service = '{name[:100]}' is not a service or model of this server")
    return _response(status)


def list_statuses(server: Server, _: GrpcRequest) -> bytes:
    names = ("", *_services(), *server.registry.names())
    statuses = {name: {"status": _status(server, name)} for name in names}
    return encode(f"{PACKAGE}.HealthListResponse", {"statuses": statuses})


async def watch(server: Server, _: GrpcRequest, messages: Messages, __: UnaryCall) -> AsyncIterator[bytes]:
    """Yield the status and then each change of it, until the server stops."""
    name = decode(f"{PACKAGE}.HealthCheckRequest", await anext(messages, b"")).get("service", "")
    last = ""
    while True:
        status = _status(server, name)
        if status != last:
            last = status
            yield _response(status)
        if server.lifecycle.state is ServerState.STOPPING:
            return
        await asyncio.sleep(POLL_S)


def _status(server: Server, name: str) -> str:
    if not name or name in _services():
        return "SERVING" if server.readiness().ready else "NOT_SERVING"
    if name not in server.registry.names():
        return "SERVICE_UNKNOWN"
    return "SERVING" if server.registry.is_ready(name) else "NOT_SERVING"


def _services() -> tuple[str, ...]:
    return tuple(service.name for service in services())


def _response(status: str) -> bytes:
    return encode(f"{PACKAGE}.HealthCheckResponse", {"status": status})


SERVICES = (
    Service(
        f"{PACKAGE}.Health",
        "grpc-health",
        (
            Method("Check", Action.HEALTH, check),
            Method("List", Action.READ, list_statuses),
            Method("Watch", Action.HEALTH, stream=watch),
        ),
    ),
)
