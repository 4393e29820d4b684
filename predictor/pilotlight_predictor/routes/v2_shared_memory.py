"""Shared-memory extensions of V2: register, list and unregister regions. CUDA shared memory is not supported."""

from typing import Any

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.dispatch import Route
from pilotlight_predictor.errors import BadRequest, NotFound, Unsupported
from pilotlight_predictor.routes.documents import read_json_object
from pilotlight_predictor.server import Server

NO_SUCH_CUDA = "Unable to find cuda shared memory region"
NO_CUDA = "memory of a GPU cannot be shared with this server: register system shared memory, or send the tensors"


def status(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.shared_memory.status(request.params.get("region", "")))


def register(server: Server, request: HttpRequest) -> HttpResponse:
    document = read_json_object(request)
    key, offset = document.get("key"), document.get("offset", 0)
    if not isinstance(key, str):
        raise BadRequest(f"key = {key!r}, must be the name of a shared memory object, such as /my_tensors")
    server.shared_memory.register(request.params["region"], key, offset, document.get("byte_size", 0))
    return HttpResponse(200, [])


def unregister(server: Server, request: HttpRequest) -> HttpResponse:
    server.shared_memory.unregister(request.params.get("region", ""))
    return HttpResponse(200, [])


def no_regions(_: Server, request: HttpRequest) -> HttpResponse:
    if name := request.params.get("region"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return json_response([])


def nothing_to_unregister(_: Server, __: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [])


def refuse_cuda(_: Server, __: HttpRequest) -> HttpResponse:
    raise Unsupported(NO_CUDA)


def _of_region(kind: str, method: str, verb: str, handler: Any) -> tuple[Route, Route]:
    """Return the routes for one region and for all."""
    return (
        Route(method, f"/v2/{kind}/region/{{region}}/{verb}", handler, Action.ADMIN),
        Route(method, f"/v2/{kind}/{verb}", handler, Action.ADMIN),
    )


ROUTES = (
    *_of_region("systemsharedmemory", "GET", "status", status),
    Route("POST", "/v2/systemsharedmemory/region/{region}/register", register, Action.ADMIN),
    *_of_region("systemsharedmemory", "POST", "unregister", unregister),
    *_of_region("cudasharedmemory", "GET", "status", no_regions),
    Route("POST", "/v2/cudasharedmemory/region/{region}/register", refuse_cuda, Action.ADMIN),
    *_of_region("cudasharedmemory", "POST", "unregister", nothing_to_unregister),
)
