"""Builder of Grafana dashboards as JSON: rows of panels with queries.

Every dashboard has variables for data source, namespace and service; every panel a unit, a description and a computed
grid position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final, Literal

from pilotlight import contract
from pilotlight.observability.rules import COUNT, FAILED

Json = Any
Kind = Literal["timeseries", "stat", "bargauge"]

COLUMNS: Final = 24
HEIGHT: Final = 8
SCHEMA: Final = 39  # of Grafana 11; later ones migrate it
LINK: Final = {
    "title": "Pilotlight", "type": "dashboards", "tags": ["pilotlight"], "asDropdown": True, "includeVars": True,
    "keepTime": True,
}  # fmt: skip
SOURCE: Final = {"type": "prometheus", "uid": "$datasource"}
# Series for the variables; the gateway's exist for a service at zero too.
_KNOWN_NAMES: Final = (contract.METRIC_IN_FLIGHT, contract.METRIC_GATEWAY_WAITING, contract.METRIC_REPLICAS)
KNOWN: Final = f'{{__name__=~"{"|".join(_KNOWN_NAMES)}"}}'
CHOSEN: Final = f'{contract.LABEL_NAMESPACE}=~"$namespace",{contract.LABEL_SERVICE}=~"$service"'
BY_SERVICE: Final = f"{contract.LABEL_NAMESPACE}, {contract.LABEL_SERVICE}"
LEGEND: Final = "{{inference_service}}"
# Annotations on every time axis: name, colour, expression, title.
_STEPS: Final = f'changes({contract.METRIC_CANARY_WEIGHT}{{{CHOSEN},side="canary"}}[1m]) > 0'
_ALERTS: Final = f'ALERTS{{alertstate="firing",alertname=~"Pilotlight.+",{CHOSEN}}}'
ANNOTATIONS: Final = (
    ("Canary steps", "blue", _STEPS, "{{inference_service}}: another share for {{revision}}"),
    ("Alerts", "red", _ALERTS, "{{alertname}} of {{inference_service}}"),
)


@dataclass(frozen=True, slots=True)
class Query:
    """One query; `legend` may refer to labels: `{{revision}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `description` explains the numbers and what to do about bad ones. `gpu`: empty without a GPU."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False
    gpu: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()  # lower bound and colour


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `name` is that of its file and of `platformctl dashboard`."""

    name: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def panel(title: str, description: str, unit: str, *queries: Query, **options: Any) -> Panel:
    """Return a panel with its queries; `options` are further fields of Panel."""
    return Panel(title, description, unit, queries, **options)


def row(title: str, *panels: Panel) -> PanelRow:
    return PanelRow(title, panels)


def select(metric: str, *more: str) -> str:
    """Return a selector for the chosen services: `select(METRIC, 'state="ready"')`."""
    return f"{metric}{{{','.join((CHOSEN, *more))}}}"


def rate(metric: str, *more: str) -> str:
    return f"rate({select(metric, *more)}[$__rate_interval])"


def quantile(share: float, metric: str, by: str = BY_SERVICE) -> str:
    """Return a quantile of a histogram, grouped by the labels `by`."""
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate(metric + '_bucket')}))"


def by_service(function: str, expression: str, *labels: str) -> str:
    """Aggregate an expression by service, and by `labels`."""
    return f"{function} by ({', '.join((BY_SERVICE, *labels))}) ({expression})"


def mean(metric: str, by: str = BY_SERVICE) -> str:
    """Return the mean of a histogram or summary, grouped by the labels `by`."""
    return f"sum by ({by}) ({rate(metric + '_sum')}) / (sum by ({by}) ({rate(metric + '_count')}) > 0)"


def error_ratio(by: str = BY_SERVICE) -> str:
    """Return the error ratio as canary checks compute it: requests lost with their replica are errors.

    It is 0 without errors, instead of no series.
    """
    lost = rate(contract.METRIC_GATEWAY_LOST)
    requests = f"sum by ({by}) ({rate(COUNT)} or {lost})"
    failed = f"sum by ({by}) ({rate(COUNT, FAILED)} or {lost})"
    return f"({failed} or 0 * {requests}) / ({requests} > 0)"


def render_dashboard(dashboard: Dashboard) -> dict[str, Json]:
    """Return the JSON of a dashboard; it is read-only in Grafana, since the file is authoritative."""
    return {
        "uid": f"pilotlight-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["pilotlight"],
        "editable": False,
        "schemaVersion": SCHEMA,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "graphTooltip": 1,
        "annotations": {"list": [_annotation(*each) for each in ANNOTATIONS]},
        "links": [LINK],
        "templating": {"list": _variables()},
        "panels": list(_layout(dashboard.rows)),
    }


def _annotation(name: str, colour: str, expression: str, title: str) -> dict[str, Json]:
    return {
        "name": name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": colour,
        "expr": expression, "titleFormat": title, "step": "15s", "useValueForTime": False,
    }  # fmt: skip


def _variables() -> list[dict[str, Json]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    within = f'{KNOWN[:-1]},{contract.LABEL_NAMESPACE}=~"$namespace"}}'
    return [
        {**source, "current": {}, "regex": "", "refresh": 1, "multi": False, "includeAll": False},
        _variable("namespace", "Namespace", f"label_values({KNOWN}, {contract.LABEL_NAMESPACE})"),
        _variable("service", "Service", f"label_values({within}, {contract.LABEL_SERVICE})"),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Json]:
    """Return a variable that is refreshed with the time range; All is `.*` instead of a list of names."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1, "hide": 0,
        "query": {"query": query, "refId": name}, "definition": query, "regex": "",
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _layout(rows: Sequence[PanelRow]) -> Iterator[dict[str, Json]]:
    """Yield the panels of all rows with grid positions, left to right and top to bottom."""
    number, top = 1, 0
    for row in rows:
        position = _grid_position(0, top, COLUMNS, 1)
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": position}
        number, top, left = number + 1, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left = top + HEIGHT, 0
            yield _panel(panel, number, _grid_position(left, top, panel.width, HEIGHT))
            number, left = number + 1, left + panel.width
        top += HEIGHT


def _grid_position(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Json]:
    options: dict[str, Json] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "auto"}
    if panel.kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "calcs": []}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": position,
        "targets": [
            {"refId": letter, "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for letter, query in zip(ascii_uppercase, panel.queries, strict=False)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": options,
    }


def _defaults(panel: Panel) -> dict[str, Json]:
    steps = [{"color": "green", "value": None}, *({"color": colour, "value": at} for at, colour in panel.thresholds)]
    lines = {
        "lineWidth": 1, "fillOpacity": 20 if panel.stacked else 8, "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }  # fmt: skip
    plain: dict[str, Json] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    return {**plain, "min": 0, "custom": lines} if panel.kind == "timeseries" else plain
