"""The same for gRPC: methods that concern all workers ask them by the HTTP call that means the same.

So the parent and the merging know one form of each call, and a refusal has the code that the HTTP status stands for.
"""

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.errors import BadRequest, Forbidden, NotFound, PredictorError, Unavailable, Unsupported
from pilotlight_predictor.rpc import v2_logging, v2_trace
from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import Method, RpcCall, Service
from pilotlight_predictor.server import Server
from pilotlight_predictor.workers.link import Link

REFUSALS: Final = {error.status: error for error in (BadRequest, Forbidden, NotFound, Unavailable, Unsupported)}
Asking = Callable[[Link, RpcCall], Awaitable[bytes]]


def spread_services(services: tuple[Service, ...], link: Link) -> tuple[Service, ...]:
    return tuple(
        service._replace(methods=tuple(_spread(method, link) for method in service.methods)) for service in services
    )


def _spread(method: Method, link: Link) -> Method:
    if "SharedMemory" in method.name:
        return method._replace(answer=_refuse)
    asking = ASKING.get(method.name)
    return method if asking is None else method._replace(answer=lambda _, call: asking(link, call))


def _refuse(_: Server, __: RpcCall) -> bytes:
    raise Unsupported("shared memory is of one process and this server has several; start it with --workers 1")


async def _statistics(link: Link, call: RpcCall) -> bytes:
    request = decode("inference.ModelStatisticsRequest", call.body)
    name, version = request.get("name", ""), request.get("version", "")
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    path = f"/v2/models/{quote(name, safe='')}{of_version}/stats" if name else "/v2/models/stats"
    return encode("inference.ModelStatisticsResponse", await _asked(link, "statistics", call, "GET", path))


async def _index(link: Link, call: RpcCall) -> bytes:
    ready = decode("inference.RepositoryIndexRequest", call.body).get("ready", False)
    rows = await _asked(link, "index", call, "POST", "/v2/repository/index", {"ready": ready})
    return encode("inference.RepositoryIndexResponse", {"models": rows})


async def _load(link: Link, call: RpcCall) -> bytes:
    name = await _controlled(link, call, "load", decode("inference.RepositoryModelLoadRequest", call.body))
    return encode("inference.RepositoryModelLoadResponse", {"model_name": name, "isLoaded": True})


async def _unload(link: Link, call: RpcCall) -> bytes:
    name = await _controlled(link, call, "unload", decode("inference.RepositoryModelUnloadRequest", call.body))
    return encode("inference.RepositoryModelUnloadResponse", {"model_name": name, "isUnloaded": True})


async def _trace(link: Link, call: RpcCall) -> bytes:
    asked, name = v2_trace.read(call)
    path = f"/v2/models/{quote(name, safe='')}/trace/setting" if name else "/v2/trace/setting"
    method = "POST" if asked else "GET"
    return v2_trace.answer(await _asked(link, "all", call, method, path, asked or None, name))


async def _logging(link: Link, call: RpcCall) -> bytes:
    asked = v2_logging.read(call)
    method = "POST" if asked else "GET"
    return v2_logging.answer(await _asked(link, "all", call, method, "/v2/logging", asked or None))


async def _controlled(link: Link, call: RpcCall, verb: str, request: Message) -> str:
    """KServe's message has the model's name where Triton's has the repository's, and nothing else."""
    name: str = request.get("model_name") or request.get("repository_name", "")
    if not name:
        raise BadRequest("model_name is empty, must be that of a model")
    given = {key: next(iter(value.values()), None) for key, value in request.get("parameters", {}).items()}
    parameters = {
        key: base64.b64encode(value).decode() if isinstance(value, bytes) else value for key, value in given.items()
    }
    path = f"/v2/repository/models/{quote(name, safe='')}/{verb}"
    await _asked(link, verb, call, "POST", path, {"parameters": parameters}, name)
    return name


async def _asked(
    link: Link, how: str, call: RpcCall, method: str, path: str, document: Any = None, model: str = ""
) -> Any:
    """The merged answer; raises what all workers, or one of them, refused it with."""
    body = b"" if document is None else json.dumps(document).encode()
    asked = Call(method, path, "", {}, body, call.peer, _unanswered, call.started)
    asked.params = {"model": model}
    reply = await link.ask(how, asked)
    assert isinstance(reply.body, list)
    text = b"".join(reply.body)
    told: Any = json.loads(text) if text else None
    if reply.status != 200:
        raise REFUSALS.get(reply.status, PredictorError)(told["error"])
    return told


def _unanswered(_: Reply) -> None:
    """The caller is answered in its own protocol."""


ASKING: Final[dict[str, Asking]] = {
    "ModelStatistics": _statistics,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "TraceSetting": _trace,
    "LogSettings": _logging,
}
