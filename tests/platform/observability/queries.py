"""Queries of dashboards as Prometheus gets them: with values in place of Grafana's variables; and the rules."""

import json
import re
from typing import Any

import yaml

from pilotlight.observability.files import DASHBOARDS, dashboard_files, rules_text

Panel = dict[str, Any]
VALUES = {"$__rate_interval": "1m", "$__range": "1h", "$namespace": ".*", "$service": ".*"}
CONTENTS: dict[str, dict[str, Any]] = dict(zip(DASHBOARDS, map(json.loads, dashboard_files().values()), strict=True))
PANELS: list[tuple[str, Panel]] = [
    (name, panel) for name, content in CONTENTS.items() for panel in content["panels"] if panel["type"] != "row"
]
NAMES = re.compile(r"\b((?:pilotlight|nv)_\w+?)(?:_bucket|_sum|_count)?\b(?=[{\[|\" )])")
RULES: dict[str, Any] = yaml.safe_load(rules_text())
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in RULES["groups"][0]["rules"]}
ALERTS: list[dict[str, Any]] = RULES["groups"][1]["rules"]
BUDGET = "pilotlight:error_budget:ratio"


def filled(expression: str) -> str:
    for variable, value in VALUES.items():
        expression = expression.replace(variable, value)
    return expression


def queries(panel: Panel) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def expressions(panel: Panel) -> list[str]:
    return [filled(query) for query in queries(panel)]


def needs_gpu(panel: Panel) -> bool:
    return "Empty without a GPU." in panel["description"]
