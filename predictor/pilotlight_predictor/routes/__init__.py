"""The HTTP dialects. Adding one is a file here with a `DIALECT` and a line in this table (docs/dialects.md)."""

from importlib import import_module
from typing import Final

from pilotlight_predictor.dispatch import Dialect
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
# What a start is asked by its probes and by most clients; the others and their codecs are as many modules again.
FIRST: Final = ("pilotlight_predictor.routes.v2", "pilotlight_predictor.routes.status")


def dialects() -> tuple[Dialect, ...]:
    """Ours in order, then those of installed packages (entry point group `pilotlight.dialects`)."""
    ours = [import_module(name) for name in TABLE]
    theirs = [point.load() for point in plugins("pilotlight.dialects")]
    return tuple(module.DIALECT for module in (*ours, *theirs))


def first_dialects() -> tuple[Dialect, ...]:
    """What a start waits for. All of them where packages add some: one that cannot be imported ends the start."""
    if plugins("pilotlight.dialects"):
        return dialects()
    return tuple(import_module(name).DIALECT for name in FIRST)
