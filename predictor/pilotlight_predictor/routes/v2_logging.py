"""Logging extension of V2: read and change log settings. Requires the admin action."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.dispatch import Route
from pilotlight_predictor.routes.documents import read_json_object
from pilotlight_predictor.server import Server


def settings(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response(server.log_settings.values())


def change(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.log_settings.change(read_json_object(request)))


ROUTES = (
    Route("GET", "/v2/logging", settings, Action.ADMIN),
    Route("POST", "/v2/logging", change, Action.ADMIN),
)
