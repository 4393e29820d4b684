"""Grafana's dashboards as plain JSON from a few values: panels with their queries, in rows, beside three variables.

Every dashboard is made here, so every one has a data source to choose, a namespace and a service, a unit and a
description on each panel, and its place in the grid without anybody counting columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    METRIC_CANARY_WEIGHT,
    METRIC_GATEWAY_WAITING,
    METRIC_IN_FLIGHT,
    METRIC_REPLICAS,
)

Json = Any
Kind = Literal["timeseries", "stat", "bargauge"]

COLUMNS: Final = 24
HEIGHT: Final = 8
SCHEMA: Final = 39  # of Grafana 11; later ones take it and bring it up to date
SOURCE: Final = {"type": "prometheus", "uid": "$datasource"}
# Of what the variables name, also while a service is at zero and only the gateway knows of it.
KNOWN: Final = f'{{__name__=~"{METRIC_IN_FLIGHT}|{METRIC_GATEWAY_WAITING}|{METRIC_REPLICAS}"}}'
CHOSEN: Final = f'{LABEL_NAMESPACE}=~"$namespace",{LABEL_SERVICE}=~"$service"'
BY_SERVICE: Final = f"{LABEL_NAMESPACE}, {LABEL_SERVICE}"
# Marks on every time axis: name, colour, what is marked, and in which words.
ANNOTATIONS: Final = (
    (
        "Canary steps",
        "blue",
        f'changes({METRIC_CANARY_WEIGHT}{{{CHOSEN},side="canary"}}[1m]) > 0',
        f"{{{{{LABEL_SERVICE}}}}}: another share for {{{{{LABEL_REVISION}}}}}",
    ),
    (
        "Alerts",
        "red",
        f'ALERTS{{alertstate="firing",alertname=~"Pilotlight.+",{CHOSEN}}}',
        f"{{{{alertname}}}} of {{{{{LABEL_SERVICE}}}}}",
    ),
)


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` may name labels: `{{revision}}`."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`description` says what the numbers mean and what to do about bad ones. `gpu`: empty where there is none."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False
    gpu: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()  # from this value on, this colour


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`name` is its file's, and what `platformctl dashboard` knows it by."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def select(metric: str, *more: str) -> str:
    """The series of the chosen services: `select(METRIC, 'state="ready"')`."""
    return f"{metric}{{{','.join((CHOSEN, *more))}}}"


def rate(metric: str, *more: str) -> str:
    return f"rate({select(metric, *more)}[$__rate_interval])"


def quantile(share: float, metric: str, by: str) -> str:
    """Of a histogram; `by` are labels that it is told apart by."""
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate(metric + '_bucket')}))"


def rendered(dashboard: Dashboard) -> dict[str, Json]:
    """Editable in Grafana only as a copy: the file is what counts."""
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
        "links": [_link()],
        "templating": {"list": _variables()},
        "panels": list(_placed(dashboard.rows)),
    }


def _annotation(name: str, colour: str, expression: str, title: str) -> dict[str, Json]:
    return {
        "name": name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": colour,
        "expr": expression, "titleFormat": title, "step": "15s", "useValueForTime": False,
    }  # fmt: skip


def _variables() -> list[dict[str, Json]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    within = f'{KNOWN[:-1]},{LABEL_NAMESPACE}=~"$namespace"}}'
    return [
        {**source, "current": {}, "regex": "", "refresh": 1, "multi": False, "includeAll": False},
        _variable("namespace", "Namespace", f"label_values({KNOWN}, {LABEL_NAMESPACE})"),
        _variable("service", "Service", f"label_values({within}, {LABEL_SERVICE})"),
    ]


def _variable(name: str, label: str, query: str) -> dict[str, Json]:
    """Asked again when the time range changes: services come and go. All of them means any, not a long list."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1, "hide": 0,
        "query": {"query": query, "refId": name}, "definition": query, "regex": "",
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _link() -> dict[str, Json]:
    return {
        "title": "Pilotlight", "type": "dashboards", "tags": ["pilotlight"], "asDropdown": True,
        "includeVars": True, "keepTime": True,
    }  # fmt: skip


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Json]]:
    """Left to right, and down when a line is full."""
    number, top = 1, 0
    for row in rows:
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": _place(0, top, 24, 1)}
        number, top, left = number + 1, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left = top + HEIGHT, 0
            yield _panel(panel, number, _place(left, top, panel.width, HEIGHT))
            number, left = number + 1, left + panel.width
        top += HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Json]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _target(query: Query, letter: str) -> dict[str, Json]:
    return {"refId": letter, "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}


def _defaults(panel: Panel) -> dict[str, Json]:
    steps = [{"color": "green", "value": None}, *({"color": colour, "value": at} for at, colour in panel.thresholds)]
    lines = {
        "lineWidth": 1, "fillOpacity": 20 if panel.stacked else 8, "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }  # fmt: skip
    plain: dict[str, Json] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    return {**plain, "min": 0, "custom": lines} if panel.kind == "timeseries" else plain


def _options(kind: Kind) -> dict[str, Json]:
    if kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "calcs": []}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "auto"}
