"""Grafana dashboards and Prometheus rules, files of the chart, for `platformctl dashboard` and `up --prometheus`."""

from typing import Final

from pilotlight.render import jinja_templates

DASHBOARDS: Final = ("overview", "autoscaling", "model", "canary")
RULES_FILE: Final = "pilotlight-rules.yaml"
ERROR_BUDGET: Final = 0.001  # of rules.yaml: an objective of 99.9 %
FOLDER: Final = "helm/inference-platform/files"


def dashboard_files(names: tuple[str, ...] = DASHBOARDS) -> dict[str, str]:
    """Return the text of dashboards by file name."""
    folder = jinja_templates.folder(FOLDER) / "dashboards"
    return {file: (folder / file).read_text() for file in (f"pilotlight-{name}.json" for name in names)}


def rules_text(error_budget: float = ERROR_BUDGET) -> str:
    """Return the rules file with another error budget, replaced as the chart does it."""
    text = (jinja_templates.folder(FOLDER) / "rules.yaml").read_text()
    return text.replace(f"vector({ERROR_BUDGET:g})", f"vector({error_budget:g})")
