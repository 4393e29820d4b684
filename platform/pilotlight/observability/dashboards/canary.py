"""Dashboard "Canary": progress, checks, and a comparison of both variants."""

from typing import Final

from pilotlight import contract
from pilotlight.observability.dashboards import builder
from pilotlight.observability.dashboards.builder import LEGEND, Dashboard, Query, by_service, panel, rate, row, select
from pilotlight.observability.rules import BY_REVISION, COUNT

REVISION: Final = f"{LEGEND} {{{{revision}}}}"
CANARY: Final = Dashboard(
    "canary", "Pilotlight / Canary", "Canary and baseline side by side.",
    (
        row(
            "Progress",
            panel(
                "Weight", "Share of the requests that each side gets, while a canary runs.", "percent",
                Query(
                    by_service("max", select(contract.METRIC_CANARY_WEIGHT), contract.LABEL_REVISION, "side"),
                    f"{REVISION} {{{{side}}}}",
                ),
            ),
            panel(
                "Phase", "What the last canary of each service is doing, or how it ended.", "short",
                Query(
                    by_service("max", f"{select(contract.METRIC_CANARY_PHASE)} == 1", "phase"),
                    f"{LEGEND} {{{{phase}}}}",
                ),
            ),
            panel(
                "Checks",
                "What each check measured last, of both sides where it compares them. Milliseconds where its name "
                "ends in _ms; rates are shares of 1.",
                "short",
                Query(
                    by_service("max", select(contract.METRIC_CANARY_CHECK), "check", "side"),
                    f"{LEGEND} {{{{check}}}} {{{{side}}}}",
                ),
            ),
        ),
        row(
            "Side by side",
            panel(
                "Latency by revision, p99", "Of every revision that answers: the canary beside its baseline.", "s",
                Query(builder.quantile(0.99, contract.METRIC_REQUEST_DURATION, BY_REVISION), REVISION),
            ),
            panel(
                "Errors by revision",
                "Share of the answers that are 5xx, and of requests that a replica took and never answered.",
                "percentunit", Query(builder.error_ratio(BY_REVISION), REVISION),
            ),
            panel(
                "Requests by revision", "Enough of them, or a check is inconclusive.", "reqps",
                Query(by_service("sum", rate(COUNT), contract.LABEL_REVISION), REVISION),
            ),
        ),
    ),
)  # fmt: skip
