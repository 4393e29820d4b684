"""The alerts of one service, for its PrometheusRule: those that depend on its plan. Names are those of contract.py.

What can be asked of any service, such as errors and models that do not load, is asked once for all of them by the
rules of the platform (observability/rules.py).
"""

from typing import Any, Final

from pilotlight.contract import LABEL_NAMESPACE, LABEL_SERVICE, METRIC_COLD_START
from pilotlight.plan.model import Plan

Rule = dict[str, Any]

DEADLINE_SHARE: Final = 0.8  # of the progress deadline: past it, the next slower start fails


def rules_of(plan: Plan) -> list[Rule]:
    """Foreign images export no metrics of ours: for them only the scrape itself can be watched."""
    selector = f'{LABEL_SERVICE}="{plan.name}",{LABEL_NAMESPACE}="{plan.namespace}"'
    measured = [work for work in plan.workloads if work.metrics_port is not None and work.mode != "virtual"]
    rules = []
    if any(work.ours for work in measured):
        rules.append(_slow_start(selector, max(work.progress_deadline_seconds for work in measured if work.ours)))
    if any(work.scaling.min_replicas > 0 for work in measured):
        rules.append(_not_scraped(selector))
    return [_named(rule, plan) for rule in rules]


def _named(rule: Rule, plan: Plan) -> Rule:
    """Whose it is: what `absent` and `max` leave over has no label that would say so."""
    return {**rule, "labels": {**rule["labels"], LABEL_NAMESPACE: plan.namespace, LABEL_SERVICE: plan.name}}


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
