"""Grafana dashboards and Prometheus rules, files of the chart, for `platformctl dashboard` and `up --prometheus`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pilotlight.render import jinja_templates

DASHBOARDS: Final = ("overview", "autoscaling", "model", "canary")
RULES_FILE: Final = "pilotlight-rules.yaml"
ERROR_BUDGET: Final = 0.001  # of rules.yaml: an objective of 99.9 %
FOLDER: Final = "helm/inference-platform/files"
PROVISIONING: Final = "provisioning"


class PanelQuery(Struct, frozen=True):
    query: str  # with Grafana's variables $namespace, $service, $__rate_interval and $__range
    legend: str  # with labels in {{ }}


class Panel(Struct, frozen=True):
    """Panel of a dashboard; one without queries is the heading of those that follow."""

    title: str
    description: str
    unit: str
    queries: tuple[PanelQuery, ...]
    min: float | None = None  # of the axis; None: by the values
    max: float | None = None


def dashboard_files(names: tuple[str, ...] = DASHBOARDS) -> dict[str, str]:
    folder = jinja_templates.folder(FOLDER) / "dashboards"
    return {file: (folder / file).read_text() for file in (f"pilotlight-{name}.json" for name in names)}


def panels(dashboard: Mapping[str, Any]) -> tuple[Panel, ...]:
    return tuple(_panel(each, each.get("fieldConfig", {}).get("defaults", {})) for each in dashboard["panels"])


def _panel(panel: Mapping[str, Any], field: Mapping[str, Any]) -> Panel:
    queries = tuple(PanelQuery(each["expr"], each["legendFormat"]) for each in panel.get("targets", ()))
    about = panel["title"], panel.get("description", ""), field.get("unit", "")
    return Panel(*about, queries, field.get("min"), field.get("max"))


def provisioning_files(folder: Path, prometheus: str) -> dict[str, str]:
    """Return Grafana's provisioning of a data source and all dashboards, by path in `folder`, which is absolute."""
    import yaml

    source = {"name": "Pilotlight", "type": "prometheus", "access": "proxy", "url": prometheus, "isDefault": True}
    provider = {"name": "Pilotlight", "type": "file", "options": {"path": str(folder / "dashboards")}}
    documents = {
        "datasources": {"apiVersion": 1, "datasources": [source]},
        "dashboards": {"apiVersion": 1, "providers": [provider]},
    }
    texts = {
        f"{PROVISIONING}/{kind}/pilotlight.yaml": yaml.safe_dump(each, sort_keys=False)
        for kind, each in documents.items()
    }
    return texts | {f"dashboards/{name}": text for name, text in dashboard_files().items()}


def rules_text(error_budget: float = ERROR_BUDGET) -> str:
    """Return the rules file with another error budget, replaced as the chart does it."""
    text = (jinja_templates.folder(FOLDER) / "rules.yaml").read_text()
    return text.replace(f"vector({ERROR_BUDGET:g})", f"vector({error_budget:g})")
