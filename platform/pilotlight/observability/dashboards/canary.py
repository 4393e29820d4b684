"""Dashboard "Canary": progress, checks, and a comparison of both variants."""

from typing import Final

from pilotlight.contract import (
    LABEL_REVISION,
    METRIC_CANARY_CHECK,
    METRIC_CANARY_PHASE,
    METRIC_CANARY_WEIGHT,
    METRIC_REQUEST_DURATION,
)
from pilotlight.observability.dashboards.builder import (
    BY_SERVICE,
    Dashboard,
    Panel,
    PanelRow,
    Query,
    error_ratio,
    quantile,
    rate,
    select,
)

BY_REVISION: Final = f"{BY_SERVICE}, {LABEL_REVISION}"
LEGEND: Final = "{{inference_service}} {{revision}}"
COUNT: Final = f"{METRIC_REQUEST_DURATION}_count"


CANARY: Final = Dashboard(
    "canary",
    "Pilotlight / Canary",
    "Canary and baseline side by side.",
    (
        PanelRow(
            "Progress",
            (
                Panel(
                    "Weight",
                    "Share of the requests that each side gets, while a canary runs.",
                    "percent",
                    (
                        Query(
                            f"max by ({BY_REVISION}, side) ({select(METRIC_CANARY_WEIGHT)})", f"{LEGEND} {{{{side}}}}"
                        ),
                    ),
                ),
                Panel(
                    "Phase",
                    "What the last canary of each service is doing, or how it ended.",
                    "short",
                    (
                        Query(
                            f"max by ({BY_SERVICE}, phase) ({select(METRIC_CANARY_PHASE)} == 1)",
                            "{{inference_service}} {{phase}}",
                        ),
                    ),
                ),
                Panel(
                    "Checks",
                    "What each check measured last, of both sides where it compares them. Milliseconds where its name "
                    "ends in _ms; rates are shares of 1.",
                    "short",
                    (
                        Query(
                            f"max by ({BY_SERVICE}, check, side) ({select(METRIC_CANARY_CHECK)})",
                            "{{inference_service}} {{check}} {{side}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Side by side",
            (
                Panel(
                    "Latency by revision, p99",
                    "Of every revision that answers: the canary beside its baseline.",
                    "s",
                    (Query(quantile(0.99, METRIC_REQUEST_DURATION, BY_REVISION), LEGEND),),
                ),
                Panel(
                    "Errors by revision",
                    "Share of the answers that are 5xx, and of requests that a replica took and never answered.",
                    "percentunit",
                    (Query(error_ratio(BY_REVISION), LEGEND),),
                ),
                Panel(
                    "Requests by revision",
                    "Enough of them, or a check is inconclusive.",
                    "reqps",
                    (Query(f"sum by ({BY_REVISION}) ({rate(COUNT)})", LEGEND),),
                ),
            ),
        ),
    ),
)
