"""Dashboards and rules as files for Grafana and Prometheus, for `platformctl dashboard` and the chart."""

import json
from typing import Final

from pilotlight.k8s.manifest import Manifest, to_yaml
from pilotlight.observability.dashboards import DASHBOARDS, Dashboard, render_dashboard
from pilotlight.observability.rules import ERROR_BUDGET, rules

RULES_FILE: Final = "pilotlight-rules.yaml"


def dashboard_text(dashboard: Dashboard) -> str:
    return json.dumps(render_dashboard(dashboard), indent=2, ensure_ascii=False) + "\n"


def rules_text(error_budget: float = ERROR_BUDGET) -> str:
    return to_yaml([Manifest(rules(error_budget))]).removeprefix("---\n")


def dashboard_files(names: tuple[str, ...] = tuple(DASHBOARDS)) -> dict[str, str]:
    return {f"pilotlight-{name}.json": dashboard_text(DASHBOARDS[name]) for name in names}
