"""Handlers of the TRTIS protocol; imported by trtis.py on the first request."""

from itertools import count
from time import perf_counter
from typing import Final
from urllib.parse import parse_qs

from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.dispatch import ServingProtocol
from pilotlight_predictor.errors import BadRequest, NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.lifecycle import ServerState
from pilotlight_predictor.protocol.trtis_request import HEADER, decode_infer, read_header, signature
from pilotlight_predictor.protocol.trtis_response import encode_infer
from pilotlight_predictor.protocol.trtis_schema import REQUEST_STATUS, SERVER_STATUS
from pilotlight_predictor.protocol.trtis_status import SERVER_STATES, error_status, model_status
from pilotlight_predictor.protocol.trtis_wire import Values, write_binary, write_text
from pilotlight_predictor.routes import trtis_profile
from pilotlight_predictor.routes.asking import run_inference
from pilotlight_predictor.routes.v2_infer import version_of
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server

STATUS: Final = "NV-Status"
RESPONSE: Final = "NV-InferResponse"
BINARY: Final = "application/octet-stream"
TEXT: Final = "text/plain"
_REQUESTS = count(1)


def error_body(error: PredictorError) -> HttpResponse:
    return HttpResponse(error.status, [], TEXT, {STATUS: _status(failure(error))})


def _status(values: Values) -> str:
    return write_text(values, REQUEST_STATUS, one_line=True)


def _success_headers(server: Server) -> dict[str, str]:
    return {STATUS: _status(success(server))}


def success(server: Server) -> Values:
    """Return the values of a RequestStatus."""
    return {"code": "SUCCESS", "server_id": server.settings.server.id, "request_id": next(_REQUESTS)}


def failure(error: PredictorError) -> Values:
    return {**error_status(error), "request_id": next(_REQUESTS)}


def is_ready(server: Server) -> bool:
    return server.readiness().ready or _lenient_ready(server)


def live(server: Server, _: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [], TEXT, _success_headers(server))


def ready(server: Server, _: HttpRequest) -> HttpResponse:
    if is_ready(server):
        return HttpResponse(200, [], TEXT, _success_headers(server))
    readiness = server.readiness()
    response = error_body(NotReady(f"Server not ready: {readiness.state} {readiness.reason}".rstrip()))
    response.status = server.not_ready_status
    return response


def _lenient_ready(server: Server) -> bool:
    """Return readiness for `--compat trtis` without strict readiness: no model is required, as in TRTIS."""
    settings = server.settings.server
    lenient = settings.compat == "trtis" and not settings.strict_readiness
    return lenient and server.lifecycle.state in {ServerState.READY, ServerState.FAILED}


def status(server: Server, request: HttpRequest) -> HttpResponse:
    binary = _is_binary(request)
    values = server_status(server, request.params.get("model"))
    body = write_binary(values, SERVER_STATUS) if binary else write_text(values, SERVER_STATUS).encode()
    return HttpResponse(200, [body], BINARY if binary else TEXT, _success_headers(server))


def server_status(server: Server, model: str | None) -> Values:
    """Return the values of a ServerStatus, of one model or of all. Raise NotFound for an unknown one."""
    names = server.registry.names()
    if model is not None:
        if model not in names:
            raise unknown(model)
        names = [model]
    return {
        "id": server.settings.server.id,
        "version": server.version,
        "uptime_ns": int(server.lifecycle.uptime(perf_counter()) * 1e9),
        "model_status": {name: _model_status(server, name) for name in names},
        "ready_state": SERVER_STATES[server.lifecycle.state],
    }


def _model_status(server: Server, name: str) -> Values:
    newest = server.registry.newest(name)
    serving = server.registry.served(name) if newest is not None else []
    rows = [row for row in server.registry.index() if row["name"] == name]
    stats = {served.version: served.stats for served in serving}
    return model_status(name, newest.config if newest is not None else None, rows, stats)


def unknown(model: str) -> NotFound:
    return NotFound(f"no status available for unknown model '{model}'")


def infer(server: Server, request: HttpRequest, protocol: ServingProtocol) -> None:
    served = find(server, request.params["model"], version_of(request))
    text = request.headers.get(HEADER.lower())
    if text is None:
        raise BadRequest(f'the header {HEADER} is missing: batch_size: 1 input {{ name: "x" }} output {{ name: "y" }}')
    header, binary = read_header(served.name, text), _is_binary(request)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)
    infer_request = decode_infer(header, known, version_of(request), request.body)

    def encode(response: InferResponse) -> HttpResponse:
        pieces, response_header = encode_infer(header, response, served.labels, batched=batched, binary=binary)
        headers = _success_headers(server)
        if response_header is not None:
            headers[RESPONSE] = response_header
        return HttpResponse(200, pieces, BINARY, headers)

    run_inference(server, request, served, infer_request, protocol, encode)


def find(server: Server, model: str, version: int) -> ModelVersion:
    try:
        return server.find(model, version)
    except NotFound:
        if model in server.registry.names():
            raise
        raise unknown(model) from None


async def profile(server: Server, request: HttpRequest) -> HttpResponse:
    command = _option(request, "cmd", ("start", "stop"))
    table = await server.codecs.run(lambda: trtis_profile.run_command(command))
    return HttpResponse(200, [table.encode()], TEXT, _success_headers(server))


def _is_binary(request: HttpRequest) -> bool:
    return bool(request.query) and _option(request, "format", ("text", "binary"), "text") == "binary"


def _option(request: HttpRequest, name: str, known: tuple[str, ...], default: str = "") -> str:
    value = parse_qs(request.query, keep_blank_values=True).get(name, [default])[-1]
    if value not in known:
        raise BadRequest(f"{name} = '{value[:50]}', must be {' or '.join(known)}")
    return value
