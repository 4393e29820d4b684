"""Table of the HTTP serving protocols, one module each with a `PROTOCOL` (docs/architecture.md), and their codecs."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.core.plugins import plugins
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.http.router import ServingProtocol

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TABLE: Final = (
    "pilotlight_predictor.protocols.v2.routes",
    "pilotlight_predictor.protocols.generate",
    "pilotlight_predictor.protocols.v1",
    "pilotlight_predictor.protocols.openai.routes",
    "pilotlight_predictor.protocols.trtis.routes",
    "pilotlight_predictor.protocols.plain_predict.routes",
    "pilotlight_predictor.protocols.invocations",
    "pilotlight_predictor.protocols.status_and_metrics",
    "pilotlight_predictor.protocols.pages.routes",
)
# Needed by probes and most clients; the others would double the modules that a start imports.
STARTUP: Final = ("pilotlight_predictor.protocols.v2.routes", "pilotlight_predictor.protocols.status_and_metrics")


def serving_protocols() -> tuple[ServingProtocol, ...]:
    """Return the built-in protocols, then those of installed packages (entry point group `pilotlight.dialects`)."""
    builtin = [import_module(name) for name in TABLE]
    installed = [_plugin_protocol(point) for point in plugins("pilotlight.dialects")]
    return (*(module.PROTOCOL for module in builtin), *installed)


def _plugin_protocol(point: "EntryPoint") -> ServingProtocol:
    """Return the protocol of an installed package. Raises PredictorError, which ends the start with one sentence."""
    try:
        protocol: ServingProtocol = point.load().PROTOCOL
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        raise PredictorError(
            f"protocol plug-in '{point.name}' of {package} cannot be loaded: {type(error).__name__}: {error}; "
            "update it (docs/architecture.md) or uninstall it"
        ) from error
    return protocol


def startup_protocols() -> tuple[ServingProtocol, ...]:
    """Return those that a start waits for; all if packages add some, since a failing import must end the start."""
    if plugins("pilotlight.dialects"):
        return serving_protocols()
    return tuple(import_module(name).PROTOCOL for name in STARTUP)
