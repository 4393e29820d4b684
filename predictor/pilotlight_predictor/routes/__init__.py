"""Table of the HTTP serving protocols: one module each with a `PROTOCOL` (docs/dialects.md)."""

from importlib import import_module
from typing import Final

from pilotlight_predictor.dispatch import ServingProtocol
from pilotlight_predictor.plugins import plugins

TABLE: Final = (
    "pilotlight_predictor.routes.v2",
    "pilotlight_predictor.routes.generate",
    "pilotlight_predictor.routes.v1",
    "pilotlight_predictor.routes.openai",
    "pilotlight_predictor.routes.trtis",
    "pilotlight_predictor.routes.predict",
    "pilotlight_predictor.routes.status",
)
# Needed by probes and most clients; the others would double the modules that a start imports.
STARTUP: Final = ("pilotlight_predictor.routes.v2", "pilotlight_predictor.routes.status")


def serving_protocols() -> tuple[ServingProtocol, ...]:
    """Return the built-in protocols, then those of installed packages (entry point group `pilotlight.dialects`)."""
    builtin = [import_module(name) for name in TABLE]
    installed = [point.load() for point in plugins("pilotlight.dialects")]
    return tuple(module.PROTOCOL for module in (*builtin, *installed))


def startup_protocols() -> tuple[ServingProtocol, ...]:
    """Return those that a start waits for; all if packages add some, since a failing import must end the start."""
    if plugins("pilotlight.dialects"):
        return serving_protocols()
    return tuple(import_module(name).PROTOCOL for name in STARTUP)
