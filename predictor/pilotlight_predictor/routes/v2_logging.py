"""The logging extension over HTTP: what is logged, and where. Needs an admin."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import Route
from pilotlight_predictor.routes.documents import document_of
from pilotlight_predictor.server import Server


def settings(server: Server, _: Call) -> Reply:
    return json_reply(server.log_settings.told())


def change(server: Server, call: Call) -> Reply:
    return json_reply(server.log_settings.change(document_of(call)))


ROUTES = (
    Route("GET", "/v2/logging", settings, Action.ADMIN),
    Route("POST", "/v2/logging", change, Action.ADMIN),
)
