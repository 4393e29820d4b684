"""HTTP handlers of the TRTIS protocol: health, status, inference, profile; imported on the first request."""

import sys
from collections.abc import Awaitable
from functools import partial
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, Final
from urllib.parse import parse_qs

from pilotlight_predictor.core.protobuf_codec import encode
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.errors import BadRequest, NotFound, NotReady, PredictorError, Unsupported
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import ServingProtocol
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import SHORT
from pilotlight_predictor.protocols.run_inference import await_response, run_inference
from pilotlight_predictor.protocols.trtis.request import HEADER, decode_infer, read_header, signature
from pilotlight_predictor.protocols.trtis.response import SERVER_STATES, encode_infer, error_status, model_status
from pilotlight_predictor.protocols.trtis.text_protobuf import REQUEST_STATUS, SERVER_STATUS, Values, write_text
from pilotlight_predictor.protocols.v2.infer import version_of
from pilotlight_predictor.server.handler_context import Server
from pilotlight_predictor.server.server_state import ServerState

STATUS: Final = "NV-Status"
RESPONSE: Final = "NV-InferResponse"
BINARY: Final = "application/octet-stream"
TEXT: Final = "text/plain"
_REQUESTS = count(1)
ROWS: Final = 40  # of a profile's table
_lock = Lock()
_running: list[Any] = []  # the profiler between start and stop


def error_body(error: PredictorError) -> HttpResponse:
    return HttpResponse(error.status, [], TEXT, {STATUS: _status(failure(error))})


def _status(values: Values) -> str:
    return write_text(values, REQUEST_STATUS, one_line=True)


def _success_headers(server: Server) -> dict[str, str]:
    return {STATUS: _status(success(server))}


def success(server: Server) -> Values:
    return {"code": "SUCCESS", "server_id": server.settings.server.id, "request_id": next(_REQUESTS)}


def failure(error: PredictorError) -> Values:
    return {**error_status(error), "request_id": next(_REQUESTS)}


def is_ready(server: Server) -> bool:
    """Return readiness; with `--compat trtis` and without strict readiness no model is required, as in TRTIS."""
    settings = server.settings.server
    lenient = settings.compat == "trtis" and not settings.strict_readiness
    started = server.lifecycle.state in {ServerState.READY, ServerState.FAILED}
    return server.readiness().ready or (lenient and started)


def live(server: Server, _: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [], TEXT, _success_headers(server))


def ready(server: Server, request: HttpRequest) -> HttpResponse:
    if is_ready(server):
        return HttpResponse(200, [], TEXT, _success_headers(server))
    readiness = server.readiness()
    reason = server.visible_reason(request, readiness.reason)
    response = error_body(NotReady(f"Server not ready: {readiness.state} {reason}".rstrip()))
    response.status = server.not_ready_status
    return response


def status(server: Server, request: HttpRequest) -> HttpResponse:
    binary = _is_binary(request)
    values = server_status(server, request.params.get("model"))
    body = encode(SERVER_STATUS, values) if binary else write_text(values, SERVER_STATUS).encode()
    return HttpResponse(200, [body], BINARY if binary else TEXT, _success_headers(server))


def server_status(server: Server, model: str | None) -> Values:
    """Return the values of a ServerStatus, of one model or of all. Raise NotFound for an unknown one."""
    names = server.registry.names()
    if model is not None:
        if model not in names:
            raise unknown(model)
        names = [model]

    def describe_model(name: str) -> Values:
        newest = server.registry.newest(name)
        serving = server.registry.served(name) if newest is not None else []
        rows = [row for row in server.registry.index() if row["name"] == name]
        stats = {served.version: served.stats for served in serving}
        return model_status(name, newest.config if newest is not None else None, rows, stats)

    return {
        "id": server.settings.server.id,
        "version": server.version,
        "uptime_ns": int(server.lifecycle.uptime(perf_counter()) * 1e9),
        "model_status": {name: describe_model(name) for name in names},
        "ready_state": SERVER_STATES[server.lifecycle.state],
    }


def unknown(model: str) -> NotFound:
    return NotFound(f"no status available for unknown model '{model}'")


def infer(server: Server, request: HttpRequest, protocol: ServingProtocol) -> Awaitable[HttpResponse] | None:
    served = find(server, request.params["model"], version_of(request))
    text = request.headers.get(HEADER.lower())
    if text is None:
        raise BadRequest(f'the header {HEADER} is missing: batch_size: 1 input {{ name: "x" }} output {{ name: "y" }}')
    header, binary = read_header(served.name, text), _is_binary(request)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)

    def encode(response: InferResponse) -> HttpResponse:
        pieces, response_header = encode_infer(header, response, served.labels, batched=batched, binary=binary)
        headers = _success_headers(server)
        if response_header is not None:
            headers[RESPONSE] = response_header
        return HttpResponse(200, pieces, BINARY, headers)

    if len(request.body) <= SHORT or not served.reads_elements:
        infer_request = decode_infer(header, known, version_of(request), request.body)
        run_inference(server, request, served, infer_request, protocol, encode)
        return None

    async def infer_long() -> HttpResponse:
        """Decode in a thread; in the meantime the client may disconnect."""
        decode = partial(decode_infer, header, known, version_of(request), request.body)
        infer_request = await server.codecs.run(decode)
        return await await_response(
            request,
            lambda finish: run_inference(server, request, served, infer_request, protocol, encode, finish=finish),
        )

    return infer_long()


def find(server: Server, model: str, version: int) -> ModelVersion:
    try:
        return server.find(model, version)
    except NotFound:
        if model in server.registry.names():
            raise
        raise unknown(model) from None


async def profile(server: Server, request: HttpRequest) -> HttpResponse:
    command = _option(request, "cmd", ("start", "stop"))
    table = await server.codecs.run(lambda: run_profiler(command))
    return HttpResponse(200, [table.encode()], TEXT, _success_headers(server))


def _is_binary(request: HttpRequest) -> bool:
    return bool(request.query) and _option(request, "format", ("text", "binary"), "text") == "binary"


def _option(request: HttpRequest, name: str, known: tuple[str, ...], default: str = "") -> str:
    value = parse_qs(request.query, keep_blank_values=True).get(name, [default])[-1]
    if value not in known:
        raise BadRequest(f"{name} = '{value[:50]}', must be {' or '.join(known)}")
    return value


def run_profiler(command: str) -> str:
    """Start or stop torch's profiler; return the table of times for stop, else an empty string.

    One profiler per server, as in TRTIS, for all threads; only if torch is imported. Called in a thread, since
    summarizing a long profile takes time.
    """
    with _lock:
        if command == "stop":
            if not _running:
                raise BadRequest("no profile is running: send cmd=start first")
            profiler = _running.pop()
            profiler.__exit__(None, None, None)
            return str(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)) + "\n"
        if _running:
            raise BadRequest("a profile is already running: send cmd=stop first")
        if "torch" not in sys.modules:
            raise Unsupported("Profile API not enabled: it profiles models that torch runs, and none is loaded")
        import torch
        from torch._C._profiler import _ExperimentalConfig
        from torch.autograd.profiler import profile  # torch.profiler imports torch.distributed: seconds

        device = "cuda" if torch.cuda.is_available() else None
        profiler = profile(use_device=device, experimental_config=_ExperimentalConfig(profile_all_threads=True))
        profiler.__enter__()
        _running.append(profiler)
        return ""
