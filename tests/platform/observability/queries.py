"""Queries of dashboards as Prometheus gets them: with values in place of Grafana's variables."""

import re

from pilotlight.observability.dashboards import DASHBOARDS
from pilotlight.observability.dashboards.builder import Panel

VALUES = {"$__rate_interval": "1m", "$__range": "1h", "$namespace": ".*", "$service": ".*"}
PANELS = [(dashboard.name, panel) for dashboard in DASHBOARDS.values() for panel in dashboard.panels]
NAMES = re.compile(r"\b((?:pilotlight|nv)_\w+?)(?:_bucket|_sum|_count)?\b(?=[{\[|\" )])")


def filled(expression: str) -> str:
    for variable, value in VALUES.items():
        expression = expression.replace(variable, value)
    return expression


def expressions(panel: Panel) -> list[str]:
    return [filled(query.expression) for query in panel.queries]
