"""Dashboard "Overview": requests, errors, error budget, latency, replicas."""

from typing import Final

from pilotlight import contract
from pilotlight.observability.dashboards import builder
from pilotlight.observability.dashboards.builder import LEGEND, Dashboard, Query, by_service, panel, rate, row, select
from pilotlight.observability.rules import BUDGET, COUNT, ERROR_BUDGET, errors_of, requests_of


def _replicas(state: str, *labels: str) -> str:
    """Return the replicas in a state; those that export metrics, if the control process is not scraped."""
    counted = by_service("sum", select(contract.METRIC_REPLICAS, f'state="{state}"'), *labels)
    return f"{counted} or {by_service('count', select(contract.METRIC_IN_FLIGHT), *labels)}"


READY: Final = _replicas("ready")


def _budget_left() -> str:
    """Return the remaining error budget over the dashboard's time range; negative if overspent."""
    errors = f"({errors_of('$__range', select)} or 0 * {requests_of('$__range', select)})"
    requests = f"({requests_of('$__range', select)} > 0)"
    return f"1 - {errors} / {requests} / scalar(max({BUDGET}) or vector({ERROR_BUDGET:g}))"


OVERVIEW: Final = Dashboard(
    "overview", "Pilotlight / Overview", "Requests, errors, latency and replicas of every service.",
    (
        row(
            "Requests",
            panel(
                "Requests per second",
                "Answered by replicas. Those that the gateway turned away are in their own panel.", "reqps",
                Query(by_service("sum", rate(COUNT)), LEGEND),
            ),
            panel(
                "Errors",
                "Share of the answers that are 5xx, and of requests that a replica took and never answered. Alerts "
                "follow the error budget, not this line.",
                "percentunit", Query(builder.error_ratio(), LEGEND),
            ),
            panel(
                "Error budget left",
                "Of what may fail within the range that is shown; below 0 it is overdrawn. The rules have the "
                "objective.",
                "percentunit", Query(_budget_left(), LEGEND), kind="stat",
                thresholds=((0.0, "red"), (0.25, "orange"), (0.5, "green")),
            ),
            panel(
                "Requests by answer",
                "Answers by their status. 503 is overload or a model that is not ready; 429 a client beyond its rate.",
                "reqps", Query(f"sum by (code) ({rate(COUNT)})", "{{code}}"), stacked=True,
            ),
            panel(
                "Turned away by the gateway",
                "no_replica: nothing could answer in time; rate: a client beyond its limit; others: access.", "reqps",
                Query(
                    f"sum by (reason) ({rate(contract.METRIC_GATEWAY_REJECTED)})"
                    f" or 0 * sum(label_replace({select(contract.METRIC_GATEWAY_WAITING)}, "
                    '"reason", "none", "", "")) by (reason)',
                    "{{reason}}",
                ),
            ),
            panel(
                "Requests in flight", "Read by a replica and not yet answered.", "short",
                Query(by_service("sum", select(contract.METRIC_IN_FLIGHT)), LEGEND),
            ),
        ),
        row(
            "Latency",
            *(
                panel(
                    f"Latency, p{share * 100:g}",
                    "From the last byte of a request to the first byte of its answer, within a replica; waiting for a "
                    "cold start comes on top.",
                    "s", Query(builder.quantile(share, contract.METRIC_REQUEST_DURATION), LEGEND),
                )
                for share in (0.5, 0.95, 0.99)
            ),
        ),
        row(
            "Replicas",
            panel(
                "Replicas ready", "That answer requests. None is as it should be for a service that nobody asks.",
                "short", Query(READY, LEGEND),
            ),
            panel(
                "Replicas desired",
                "What the autoscaler wants, by revision; where nobody exports it, the replicas that answer.", "short",
                Query(_replicas("desired", contract.LABEL_REVISION), f"{LEGEND} {{{{revision}}}}"),
            ),
            panel(
                "Models by state",
                "Versions of models in each state. UNAVAILABLE for long: look at the logs of that replica.", "short",
                Query(f"sum by (state) ({select(contract.METRIC_MODEL_STATE)})", "{{state}}"), stacked=True,
            ),
        ),
    ),
)  # fmt: skip
