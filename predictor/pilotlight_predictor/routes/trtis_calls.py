"""What the TensorRT Inference Server's calls do: read, ask, answer. Imported at the first of them, by trtis.py."""

from itertools import count
from time import perf_counter
from typing import Final
from urllib.parse import parse_qs

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.errors import BadRequest, NotFound, NotReady, PredictorError
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.lifecycle import State
from pilotlight_predictor.protocol.trtis_request import HEADER, decode_infer, read_header, signature
from pilotlight_predictor.protocol.trtis_response import encode_infer
from pilotlight_predictor.protocol.trtis_schema import REQUEST_STATUS, SERVER_STATUS
from pilotlight_predictor.protocol.trtis_status import SERVER_STATES, model_status, refusal
from pilotlight_predictor.protocol.trtis_wire import Values, write_binary, write_text
from pilotlight_predictor.routes import trtis_profile
from pilotlight_predictor.routes.asking import ask
from pilotlight_predictor.routes.trtis import DIALECT
from pilotlight_predictor.routes.v2_infer import version_of
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

STATUS: Final = "NV-Status"
RESPONSE: Final = "NV-InferResponse"
BINARY: Final = "application/octet-stream"
TEXT: Final = "text/plain"
_REQUESTS = count(1)


def error_body(error: PredictorError) -> Reply:
    return Reply(error.status, [], TEXT, {STATUS: _status(failure(error))})


def _status(values: Values) -> str:
    return write_text(values, REQUEST_STATUS, one_line=True)


def _succeeded(server: Server) -> dict[str, str]:
    return {STATUS: _status(success(server))}


def success(server: Server) -> Values:
    """The values of a RequestStatus."""
    return {"code": "SUCCESS", "server_id": server.settings.server.id, "request_id": next(_REQUESTS)}


def failure(error: PredictorError) -> Values:
    return {**refusal(error), "request_id": next(_REQUESTS)}


def is_ready(server: Server) -> bool:
    return server.readiness().ready or _content(server)


def live(server: Server, _: Call) -> Reply:
    return Reply(200, [], TEXT, _succeeded(server))


def ready(server: Server, _: Call) -> Reply:
    if is_ready(server):
        return Reply(200, [], TEXT, _succeeded(server))
    verdict = server.readiness()
    reply = error_body(NotReady(f"Server not ready: {verdict.state} {verdict.reason}".rstrip()))
    reply.status = server.not_ready_status
    return reply


def _content(server: Server) -> bool:
    """With `--compat trtis`, readiness that is not strict asks for no model at all, as it did there."""
    told = server.settings.server
    lenient = told.compat == "trtis" and not told.strict_readiness
    return lenient and server.lifecycle.state in {State.READY, State.FAILED}


def status(server: Server, call: Call) -> Reply:
    binary = _is_binary(call)
    values = server_status(server, call.params.get("model"))
    body = write_binary(values, SERVER_STATUS) if binary else write_text(values, SERVER_STATUS).encode()
    return Reply(200, [body], BINARY if binary else TEXT, _succeeded(server))


def server_status(server: Server, model: str | None) -> Values:
    """The values of a ServerStatus, of one model or of all. Raises NotFound for an unknown one."""
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


def infer(server: Server, call: Call) -> None:
    served = find(server, call.params["model"], version_of(call))
    text = call.headers.get(HEADER.lower())
    if text is None:
        raise BadRequest(f'the header {HEADER} is missing: batch_size: 1 input {{ name: "x" }} output {{ name: "y" }}')
    header, binary = read_header(served.name, text), _is_binary(call)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)
    request = decode_infer(header, known, version_of(call), call.body)

    def encode(response: InferResponse) -> Reply:
        pieces, described = encode_infer(header, response, served.labels, batched=batched, binary=binary)
        headers = _succeeded(server)
        if described is not None:
            headers[RESPONSE] = described
        return Reply(200, pieces, BINARY, headers)

    ask(server, call, served, request, DIALECT, encode)


def find(server: Server, model: str, version: int) -> ServedVersion:
    try:
        return server.find(model, version)
    except NotFound:
        if model in server.registry.names():
            raise
        raise unknown(model) from None


async def profile(server: Server, call: Call) -> Reply:
    command = _option(call, "cmd", ("start", "stop"))
    table = await server.codecs.run(lambda: trtis_profile.obey(command))
    return Reply(200, [table.encode()], TEXT, _succeeded(server))


def _is_binary(call: Call) -> bool:
    return bool(call.query) and _option(call, "format", ("text", "binary"), "text") == "binary"


def _option(call: Call, name: str, known: tuple[str, ...], default: str = "") -> str:
    given = parse_qs(call.query, keep_blank_values=True).get(name, [default])[-1]
    if given not in known:
        raise BadRequest(f"{name} = '{given[:50]}', must be {' or '.join(known)}")
    return given
