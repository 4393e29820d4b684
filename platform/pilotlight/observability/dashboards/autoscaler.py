"""Dashboard "Autoscaling": signals and targets, replica counts, cold starts, reasons of decisions."""

from typing import Final

from pilotlight import contract
from pilotlight.observability.dashboards.builder import LEGEND, Dashboard, Query, by_service, mean, panel, row, select
from pilotlight.observability.dashboards.overview import READY

METRIC_LEGEND: Final = f"{LEGEND} {{{{metric}}}}"


def _state(state: str) -> Query:
    return Query(by_service("sum", select(contract.METRIC_REPLICAS, f'state="{state}"')), f"{LEGEND} {state}")


def _at_zero() -> str:
    """Return the share of the last hour without a ready replica; services at zero are known from the gateway."""
    known = by_service("sum", select(contract.METRIC_GATEWAY_WAITING))
    return f"avg_over_time((({READY} or 0 * {known}) == bool 0)[1h:])"


AUTOSCALING: Final = Dashboard(
    "autoscaling", "Pilotlight / Autoscaling", "Signals, counts, cold starts and the reasons of decisions.",
    (
        row(
            "Counts",
            panel(
                "Signal and target",
                "What the autoscaler measures for each replica, and what it compares it with. On a cluster Knative "
                "and KEDA measure; their own dashboards show it.",
                "short",
                Query(by_service("sum", select(contract.METRIC_SCALE_SIGNAL), "metric"), METRIC_LEGEND),
                Query(by_service("max", select(contract.METRIC_SCALE_TARGET), "metric"), f"{METRIC_LEGEND} target"),
            ),
            panel(
                "Desired, starting, ready", "Desired above ready for long means that starts are slow or fail.", "short",
                _state("desired"), _state("starting"), _state("ready"),
            ),
            panel(
                "Bounds", "How many replicas may run, by the document or set by hand.", "short",
                Query(by_service("max", select(contract.METRIC_REPLICA_LIMITS), "bound"), f"{LEGEND} {{{{bound}}}}"),
            ),
            panel(
                "Requests that wait", "At the gateway, for a replica. At zero replicas this is what wakes a service.",
                "short", Query(by_service("sum", select(contract.METRIC_GATEWAY_WAITING)), LEGEND),
            ),
            panel(
                "Decisions by reason", "Changes of a count in each interval, by the rule that decided.", "short",
                Query(
                    f"sum by (reason) (increase({select(contract.METRIC_SCALE_DECISIONS)}[$__rate_interval]))",
                    "{{reason}}",
                ),
                stacked=True,
            ),
            panel(
                "Share of time at zero", "Of the last hour, in which no replica ran: what scaling to zero saves.",
                "percentunit", Query(_at_zero(), LEGEND), kind="bargauge",
            ),
        ),
        row(
            "Cold starts",
            panel(
                "Cold starts in an hour", "Requests that had to wait until a replica had started.", "short",
                Query(by_service("sum", f"increase({select(contract.METRIC_GATEWAY_COLD_STARTS)}[1h])"), LEGEND),
            ),
            panel(
                "Cold start by phase, p95",
                "Of the replicas that run: from exec to ready, and the parts of it. A long fetch wants a cache, a "
                "long import a pilot light.",
                "s", Query(f"quantile by (phase) (0.95, {select(contract.METRIC_COLD_START)})", "{{phase}}"),
            ),
            panel(
                "Time that requests were held",
                "Mean over requests that found no replica free; it comes on top of the latency.", "s",
                Query(
                    f"{mean(contract.METRIC_GATEWAY_HELD)}"
                    f" or 0 * {by_service('sum', select(contract.METRIC_GATEWAY_WAITING))}",
                    LEGEND,
                ),
            ),
        ),
    ),
)  # fmt: skip
