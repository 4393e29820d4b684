"""Alerts of one service that depend on its plan, for its PrometheusRule.

Alerts that apply to any service, such as errors and failing model loads, are rules of the platform
(observability/rules.py).
"""

from typing import Any, Final

from pilotlight.contract import LABEL_NAMESPACE, LABEL_SERVICE, METRIC_COLD_START
from pilotlight.plan.model import Plan

AlertRule = dict[str, Any]

DEADLINE_SHARE: Final = 0.8  # of the progress deadline, above which the next slower start fails


def rules_of(plan: Plan) -> list[AlertRule]:
    """Return the alert rules. For foreign images, which do not export our metrics, only the scrape is watched."""
    selector = f'{LABEL_SERVICE}="{plan.name}",{LABEL_NAMESPACE}="{plan.namespace}"'
    measured = [work for work in plan.workloads if work.metrics_port is not None and work.mode != "virtual"]
    rules = []
    if any(work.is_pilotlight for work in measured):
        rules.append(
            _slow_start(selector, max(work.progress_deadline_seconds for work in measured if work.is_pilotlight))
        )
    if any(work.scaling.min_replicas > 0 for work in measured):
        rules.append(_not_scraped(selector))
    return [_labelled(rule, plan) for rule in rules]


def _labelled(rule: AlertRule, plan: Plan) -> AlertRule:
    """Label a rule with its service, since `absent` and `max` drop the labels."""
    return {**rule, "labels": {**rule["labels"], LABEL_NAMESPACE: plan.namespace, LABEL_SERVICE: plan.name}}


def _slow_start(selector: str, deadline: int) -> AlertRule:
    bound = round(deadline * DEADLINE_SHARE)
    return _alert(
        "PilotlightSlowStart", f'max({METRIC_COLD_START}{{{selector},phase="total"}}) > {bound}', "", "warning",
        f"A start took more than {bound} s of the {deadline} s that it may take: raise the progress deadline",
    )  # fmt: skip


def _not_scraped(selector: str) -> AlertRule:
    return _alert(
        "PilotlightNotScraped", f"absent(up{{{selector}}} == 1)", "10m", "critical",
        "Nothing of the service is scraped: scaling by latency holds its fallback",
    )  # fmt: skip


def _alert(name: str, expression: str, pending: str, severity: str, summary: str) -> AlertRule:
    return {
        "alert": name,
        "expr": expression,
        **({"for": pending} if pending else {}),
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
