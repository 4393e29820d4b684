"""The trace extension over HTTP: what is traced of all models, or of one. Needs an admin, as its changes cost time."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import Route
from pilotlight_predictor.routes.documents import document_of
from pilotlight_predictor.server import Server


def settings(server: Server, call: Call) -> Reply:
    return json_reply(server.traces.settings(_model(server, call)))


def change(server: Server, call: Call) -> Reply:
    return json_reply(server.traces.change(document_of(call), _model(server, call)))


def _model(server: Server, call: Call) -> str:
    """Empty for all models. Raises NotFound."""
    name = call.params.get("model")
    return server.find(name).name if name else ""


ROUTES = tuple(
    Route(method, f"/v2{of}/trace/setting", handler, Action.ADMIN)
    for of in ("", "/models/{model}", "/models/{model}/versions/{version}")
    for method, handler in (("GET", settings), ("POST", change))
)
