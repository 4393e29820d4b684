"""The alerts of one service, for its PrometheusRule. Queries use only names of contract.py and filter both labels."""

from typing import Any, Final

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_SERVICE,
    METRIC_COLD_START,
    METRIC_MODEL_STATE,
    METRIC_QUEUE_SECONDS,
    METRIC_REQUEST_DURATION,
)
from pilotlight.plan.model import Plan

Rule = dict[str, Any]

ERROR_SHARE: Final = 0.05
QUEUE_SECONDS: Final = 1.0  # an edge of contract.LATENCY_BUCKETS, so the quantile is not interpolated across it
DEADLINE_SHARE: Final = 0.8  # of the progress deadline: past it, the next slower start fails


def rules_of(plan: Plan) -> list[Rule]:
    """Foreign images export no metrics of ours: for them only the scrape itself can be watched."""
    selector = f'{LABEL_SERVICE}="{plan.name}",{LABEL_NAMESPACE}="{plan.namespace}"'
    measured = [work for work in plan.workloads if work.metrics_port is not None and work.mode != "virtual"]
    rules = []
    if any(work.ours for work in measured):
        rules += [_errors(selector), _queueing(selector), _no_model(selector)]
        rules.append(_slow_start(selector, max(work.progress_deadline_seconds for work in measured if work.ours)))
    if any(work.scaling.min_replicas > 0 for work in measured):
        rules.append(_not_scraped(selector))
    return rules


def _errors(selector: str) -> Rule:
    count = f"{METRIC_REQUEST_DURATION}_count"
    failed = f'sum(rate({count}{{{selector},code=~"5.."}}[5m]))'
    return _alert(
        "PilotlightErrors", f"{failed} / sum(rate({count}{{{selector}}}[5m])) > {ERROR_SHARE}", "5m", "critical",
        "More than 5 % of the requests fail",
    )  # fmt: skip


def _queueing(selector: str) -> Rule:
    waits = f"sum by (le) (rate({METRIC_QUEUE_SECONDS}_bucket{{{selector}}}[5m]))"
    return _alert(
        "PilotlightQueueing", f"histogram_quantile(0.95, {waits}) > {QUEUE_SECONDS:g}", "10m", "warning",
        "One request in twenty waits more than a second for its execution: raise maxReplicas or lower the scale target",
    )  # fmt: skip


def _no_model(selector: str) -> Rule:
    ready = f'max by (model) ({METRIC_MODEL_STATE}{{{selector},state="READY"}})'
    return _alert("PilotlightModelNotReady", f"{ready} == 0", "15m", "warning", "No version of a model is ready")


def _slow_start(selector: str, deadline: int) -> Rule:
    bound = round(deadline * DEADLINE_SHARE)
    return _alert(
        "PilotlightSlowStart", f'max({METRIC_COLD_START}{{{selector},phase="total"}}) > {bound}', "", "warning",
        f"A start took more than {bound} s of the {deadline} s that it may take: raise the progress deadline",
    )  # fmt: skip


def _not_scraped(selector: str) -> Rule:
    return _alert(
        "PilotlightNotScraped", f"absent(up{{{selector}}} == 1)", "10m", "critical",
        "Nothing of the service is scraped: scaling by latency holds its fallback",
    )  # fmt: skip


def _alert(name: str, expression: str, pending: str, severity: str, summary: str) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        **({"for": pending} if pending else {}),
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
