"""Dashboard "Canary": progress, checks, and a comparison of both variants."""

from typing import Final

from pilotlight import contract
from pilotlight.observability.dashboards.builder import (
    BY_SERVICE,
    Dashboard,
    Query,
    error_ratio,
    panel,
    quantile,
    rate,
    row,
    select,
)

BY_REVISION: Final = f"{BY_SERVICE}, {contract.LABEL_REVISION}"
LEGEND: Final = "{{inference_service}} {{revision}}"
COUNT: Final = f"{contract.METRIC_REQUEST_DURATION}_count"


CANARY: Final = Dashboard(
    "canary", "Pilotlight / Canary", "Canary and baseline side by side.",
    (
        row(
            "Progress",
            panel(
                "Weight", "Share of the requests that each side gets, while a canary runs.", "percent",
                Query(
                    f"max by ({BY_REVISION}, side) ({select(contract.METRIC_CANARY_WEIGHT)})", f"{LEGEND} {{{{side}}}}"
                ),
            ),
            panel(
                "Phase", "What the last canary of each service is doing, or how it ended.", "short",
                Query(
                    f"max by ({BY_SERVICE}, phase) ({select(contract.METRIC_CANARY_PHASE)} == 1)",
                    "{{inference_service}} {{phase}}",
                ),
            ),
            panel(
                "Checks",
                "What each check measured last, of both sides where it compares them. Milliseconds where its name "
                "ends in _ms; rates are shares of 1.",
                "short",
                Query(
                    f"max by ({BY_SERVICE}, check, side) ({select(contract.METRIC_CANARY_CHECK)})",
                    "{{inference_service}} {{check}} {{side}}",
                ),
            ),
        ),
        row(
            "Side by side",
            panel(
                "Latency by revision, p99", "Of every revision that answers: the canary beside its baseline.", "s",
                Query(quantile(0.99, contract.METRIC_REQUEST_DURATION, BY_REVISION), LEGEND),
            ),
            panel(
                "Errors by revision",
                "Share of the answers that are 5xx, and of requests that a replica took and never answered.",
                "percentunit", Query(error_ratio(BY_REVISION), LEGEND),
            ),
            panel(
                "Requests by revision", "Enough of them, or a check is inconclusive.", "reqps",
                Query(f"sum by ({BY_REVISION}) ({rate(COUNT)})", LEGEND),
            ),
        ),
    ),
)  # fmt: skip
