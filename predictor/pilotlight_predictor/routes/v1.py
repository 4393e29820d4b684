"""KServe's V1 dialect: predict, explain, and which models are ready."""

from collections.abc import Awaitable, Callable
from typing import Any

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import Dialect, Route
from pilotlight_predictor.errors import NotFound, NotReady, Unsupported
from pilotlight_predictor.inference import NEWEST, InferRequest, InferResponse
from pilotlight_predictor.protocol.pieces import LONG
from pilotlight_predictor.protocol.v1 import Document, decode_predict, encode_predictions, read_document
from pilotlight_predictor.routes import openai
from pilotlight_predictor.routes.asking import Encode, ask, reply_of
from pilotlight_predictor.routes.v2_answer import error_body
from pilotlight_predictor.routes.v2_infer import version_of
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server


def alive(_: Server, __: Call) -> Reply:
    """What KServe's V1 clients ask for liveness."""
    return json_reply({"status": "alive"})


def models(server: Server, _: Call) -> Reply:
    return json_reply(model_list(server))


def model_list(server: Server) -> dict[str, Any]:
    """For KServe's clients `models`; for OpenAI's, who ask at the same place, `data`."""
    return {"models": server.registry.names(), **openai.model_list(server)}


def model_ready(server: Server, call: Call) -> Reply:
    """KServe says 503 for a model that it knows and that is not ready."""
    name, version = call.params["model"], version_of(call)
    try:
        served = server.find(name, version)
    except NotFound:
        if version == NEWEST and name in server.registry.names():
            raise NotReady(f"model '{name}' is not ready: {server.registry.reason(name)}") from None
        raise
    if not served.executor.alive:
        raise NotReady(f"model '{name}' is not ready: {served.executor.problem}")
    told = {"name": name, "ready": True}
    return json_reply({**told, **openai.described(served)} if openai.speaks(served) else told)


def predict(server: Server, call: Call) -> Awaitable[Reply] | None:
    return _asked(server, call, "predict")


def explain(server: Server, call: Call) -> Awaitable[Reply] | None:
    return _asked(server, call, "explain")


def _asked(server: Server, call: Call, verb: str) -> Awaitable[Reply] | None:
    version = version_of(call)
    served = server.find(call.params["model"], version)
    if verb not in {"predict", *served.verbs}:
        raise Unsupported(
            f"model '{served.name}' does not explain: only a kserve.Model that defines explain() does; use :predict"
        )
    if len(call.body) > LONG:
        return _asked_long(server, call, served, verb, version)
    _ask(server, call, served, *_decoded(served, call, verb, version), None)
    return None


async def _asked_long(server: Server, call: Call, served: ServedVersion, verb: str, version: int) -> Reply:
    """JSON of megabytes is read in a thread; meanwhile the client may leave, and the model may be replaced."""
    request, encode = await server.codecs.run(lambda: _decoded(served, call, verb, version))
    newest = server.find(served.name, version)
    return await reply_of(call, lambda finish: _ask(server, call, newest, request, encode, finish))


def _ask(
    server: Server,
    call: Call,
    served: ServedVersion,
    request: InferRequest,
    encode: Encode,
    finish: Callable[[Reply], None] | None,
) -> None:
    ask(server, call, served, request, DIALECT, encode, as_text=True, finish=finish)


def _decoded(served: ServedVersion, call: Call, verb: str, version: int) -> tuple[InferRequest, Encode]:
    document = read_document(call.body)
    if verb in served.verbs:
        return _document_request(served, document, verb, version), _document_reply
    asked = decode_predict(
        served.name, version, document, served.inputs, batched=served.config.max_batch_size > 0
    )  # fmt: skip
    return asked.request, lambda response: Reply(200, [encode_predictions(asked, response)])


def _document_request(served: ServedVersion, document: Document, verb: str, version: int) -> InferRequest:
    """A kserve.Model takes V1's JSON as it came, and answers in JSON of its own."""
    return InferRequest(served.name, {}, version, document=document, verb=verb)


def _document_reply(response: InferResponse) -> Reply:
    return Reply(200, [response.outputs["document"].array[0]])


def _of_model(
    ending: str, method: str, handler: Callable[[Server, Call], Reply | Awaitable[Reply] | None], action: Action
) -> tuple[Route, Route]:
    """Every call on a model exists with and without a version."""
    return (
        Route(method, "/v1/models/{model}" + ending, handler, action, hot=True),
        Route(method, "/v1/models/{model}/versions/{version}" + ending, handler, action, hot=True),
    )


DIALECT = Dialect(
    "v1",
    (
        Route("GET", "/", alive, Action.HEALTH),
        Route("GET", "/v1/models", models, Action.READ),
        *_of_model(":predict", "POST", predict, Action.INFER),
        *_of_model(":explain", "POST", explain, Action.INFER),
        *_of_model("", "GET", model_ready, Action.HEALTH),
    ),
    error_body,
)
