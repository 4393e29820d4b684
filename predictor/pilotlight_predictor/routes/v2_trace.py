"""Trace extension of V2: read and change trace settings, global or of one model. Requires the admin action."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.dispatch import Route
from pilotlight_predictor.routes.documents import read_json_object
from pilotlight_predictor.server import Server


def settings(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.traces.settings(_model(server, request)))


def change(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.traces.change(read_json_object(request), _model(server, request)))


def _model(server: Server, request: HttpRequest) -> str:
    """Return the model name, empty for all models. Raise NotFound."""
    name = request.params.get("model")
    return server.find(name).name if name else ""


ROUTES = tuple(
    Route(method, f"/v2{of}/trace/setting", handler, Action.ADMIN)
    for of in ("", "/models/{model}", "/models/{model}/versions/{version}")
    for method, handler in (("GET", settings), ("POST", change))
)
