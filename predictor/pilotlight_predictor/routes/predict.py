"""The serving capability: POST /predict, WebSocket /predict/stream, /healthz and /ready.

Lists of numbers in, predictions out, for models with one input. Its limits bind it from the start, those of other
dialects only where they are set (settings/limits.py). Errors are {"detail": …}. The page: docs/predict.md.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, Session, json_reply
from pilotlight_predictor.dispatch import Dialect, ErrorBody, Route
from pilotlight_predictor.errors import Cancelled, NotReady, PredictorError
from pilotlight_predictor.inference import RequestedOutput
from pilotlight_predictor.protocol.pieces import LONG
from pilotlight_predictor.protocol.predict_request import Asked, Invalid, Part, parts, read_body
from pilotlight_predictor.routes.predict_run import NAME, Run
from pilotlight_predictor.routes.predict_stream import Conversation
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.settings import limits
from pilotlight_predictor.tensors import TensorSpec

STICKY_HEADER: Final = "x-sticky-key"
NOT_LOADED: Final = "Model not loaded"
COME_BACK: Final = {"Retry-After": "1"}


def error_body(error: PredictorError) -> Reply:
    """What a client sent may be quoted in it, so it need not be text that JSON can carry."""
    return json_reply({"detail": str(error).encode("utf-8", "replace").decode()}, error.status)


def predict(server: Server, call: Call) -> Awaitable[Reply] | None:
    return begin(server, call, error_body)


def begin(server: Server, call: Call, told: ErrorBody) -> Awaitable[Reply] | None:
    """Answers now, later, or through `call.finish`, as handlers do; `told` makes the body of an error."""
    if len(call.body) > LONG:
        return _predict_long(server, call, told)
    _prepare(server, call, read_body(call.body), told).start(call.finish)
    return None


async def _predict_long(server: Server, call: Call, told: ErrorBody) -> Reply:
    """JSON of megabytes is read in a thread; meanwhile the client may leave, and the model may be replaced."""
    asked = await server.codecs.run(lambda: read_body(call.body))
    if call.abandoned:
        raise Cancelled("the client has gone")
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    _prepare(server, call, asked, told).start(reply.set_result)
    return await reply


def _prepare(server: Server, call: Call, asked: Asked, told: ErrorBody) -> Run:
    served, work = plan(server, asked, call.header(STICKY_HEADER))
    return Run(server, call, served, work, told, asked.batch)


def plan(server: Server, asked: Asked, sticky: str) -> tuple[ServedVersion, list[Part]]:
    """Who answers, and what it is asked for."""
    served = choose(server, asked, sticky)
    work = parts(asked, served.name, served.version, _only_input(served), served.config.max_batch_size)
    wanted = asked.output or next((output.name for output in served.outputs), "")
    for part in work:
        part.request.outputs = (RequestedOutput(wanted),) if wanted else ()
    return served, work


def choose(server: Server, asked: Asked, sticky: str = "") -> ServedVersion:
    """The version that was asked for, else one by the shares of an A/B test, else the newest."""
    name, versions = asked.model_name or only_model(server), server.versions
    if asked.model_version or not versions.shared(name):
        return server.find(name, versions.number(name, asked.model_version))
    ready = {served.version for served in server.registry.served(name)}
    return server.find(name, versions.draw(name, ready, asked.sticky_key or sticky))


def only_model(server: Server) -> str:
    """The model that nobody needs to name: the only one, or the only one that the server was started for."""
    for names in (server.registry.asked_for(), server.control.required):
        if len(names) == 1:
            return names[0]
    names = server.registry.asked_for()
    if not names:
        raise NotReady(NOT_LOADED)
    known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    raise Invalid(f"model_name is missing, must be one of the {len(names)} models here: {known}")


def _only_input(served: ServedVersion) -> TensorSpec:
    needed = [spec for spec in served.inputs if not spec.optional] or list(served.inputs)
    if len(needed) == 1:
        return needed[0]
    names = ", ".join(spec.name for spec in needed)
    raise Invalid(
        f"model '{served.name}' has {len(needed)} inputs ({names}), /predict serves models with one;"
        f" ask it at /v2/models/{served.name}/infer"
    )


async def stream(server: Server, session: Session) -> None:
    await Conversation(server, session, begin).run()


def upgrade_needed(_: Server, __: Call) -> Reply:
    told = {"detail": "/predict/stream is a WebSocket: ask with Connection: Upgrade and Upgrade: websocket"}
    return json_reply(told, 426, {"Upgrade": "websocket", "Connection": "Upgrade"})


def healthz(server: Server, _: Call) -> Reply:
    verdict = server.readiness()
    if not verdict.ready:
        told = {"detail": NOT_LOADED, "state": verdict.state, "reason": verdict.reason}
        return json_reply(told, 503, COME_BACK)
    return json_reply({"status": "healthy", "model_version": _version(server)})


def ready(server: Server, _: Call) -> Reply:
    verdict = server.readiness()
    if verdict.ready:
        return json_reply({"status": "ready"})
    return json_reply({"detail": verdict.reason or verdict.state, "state": verdict.state}, 503, COME_BACK)


def _version(server: Server) -> str:
    """That of the model that nobody needs to name; a server of many models has none to tell."""
    try:
        served = server.find(only_model(server))
    except PredictorError:
        return "unknown"
    return server.versions.label(served.name, served.version)


DIALECT = Dialect(
    NAME,
    (
        Route("POST", "/predict", predict, Action.INFER, hot=True),
        Route("GET", "/predict/stream", upgrade_needed, Action.INFER, socket=stream),
        Route("GET", "/healthz", healthz, Action.HEALTH, hot=True),
        Route("GET", "/ready", ready, Action.HEALTH, hot=True),
    ),
    error_body,
    lambda settings: limits(settings, predict=True),
)
