"""Heuristics on PromQL text: latency or not, NaN, empty results, number of series.

Each metric is classified by the calls around it. Unclear cases give no finding, except for the number of series, where
a missed finding would hide an outage.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pilotlight.prometheus import promql
from pilotlight.prometheus.promql import Node, kind

Grouping = frozenset[str] | None  # labels of by; None: the call does not aggregate
STRING: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
# These return one series per selected element, so they do not aggregate to one.
PICKING: Final = frozenset({"topk", "bottomk", "count_values", "limitk", "limit_ratio"})
ONE_BY_NATURE: Final = frozenset({"scalar", "absent", "absent_over_time", "vector"})

LATENCY: Final = re.compile(r"latency|duration|time_to_first_token|ttft|response_time|_seconds(?:$|_sum$)", re.I)
COUNTING: Final = re.compile(r"_(?:count|total|bucket|created)$|^time$")
UTILISATION: Final = re.compile(r"utili[sz]ation|_util(?:$|_)|_usage_perc|_usage_ratio|_percent", re.I)
ZERO: Final = re.compile(r"\bor\b\s*(?:on\s*\(\s*\)\s*)?\(?\s*vector\s*\(\s*0(?:\.0*)?\s*\)")
COMPARISON: Final = re.compile(r"[<>]=?|==|!=")


@dataclass(frozen=True, slots=True)
class Metric:
    """A selector: its name, the labels with an equality matcher, and the calls around it, outermost first."""

    name: str
    pinned: frozenset[str] = frozenset()
    calls: tuple[str, ...] = ()
    groupings: tuple[Grouping, ...] = ()  # of each call

    @property
    def is_one_series(self) -> bool:
        pinned = self.pinned | ({"le"} if "histogram_quantile" in self.calls else set())
        return any(
            call in ONE_BY_NATURE or (grouping is not None and call not in PICKING and grouping <= pinned)
            for call, grouping in zip(self.calls, self.groupings, strict=True)
        )


def is_latency(query: str) -> bool:
    """Return whether a query measures latency. A rate of `_count` is traffic, of `_sum` alone concurrency (Little)."""
    text = STRING.sub('""', query)
    if "histogram_quantile" in text:
        return True
    names = {metric.name for metric in metrics(query) if LATENCY.search(metric.name)}
    return any(not COUNTING.search(name) and ("/" in text or not name.endswith("_sum")) for name in names)


def is_utilisation(query: str) -> bool:
    """Return whether a query measures a ratio that does not grow with the replicas; a sum does."""
    utilisations = [metric for metric in metrics(query) if UTILISATION.search(metric.name)]
    return any("sum" not in metric.calls for metric in utilisations)


def may_be_nan(query: str) -> bool:
    """Return whether a query is 0/0 while idle: a quantile or average without a comparison that drops NaN."""
    text = re.sub(r"\{[^}]*\}", "", STRING.sub('""', query))
    divides = "histogram_quantile" in text or re.search(r"/\s*[^\d\s.]", text) is not None
    return divides and not COMPARISON.search(text) and "clamp_min" not in text


def ends_in_zero(query: str) -> bool:
    return ZERO.search(STRING.sub('""', query)) is not None


def several_series(query: str) -> list[str]:
    """Return the metrics that no aggregation reduces to one series."""
    return sorted({metric.name for metric in metrics(query) if not metric.is_one_series})


def metrics(query: str) -> list[Metric]:
    """Return the selectors whose series are in the result; none for a query that Prometheus refuses."""
    try:
        return list(_metrics(promql.parse(query)))
    except promql.InvalidQuery:
        return []


def _metrics(node: Node, calls: tuple[str, ...] = (), groupings: tuple[Grouping, ...] = ()) -> Iterator[Metric]:
    match kind(node):
        case "VectorSelector":
            pinned = frozenset(each.name for each in node.matchers.matchers if str(each.op) == "MatchOp.Equal")
            yield Metric(node.name or "{}", pinned, calls, groupings)
        case "MatrixSelector":
            yield from _metrics(node.vector_selector, calls, groupings)
        case "AggregateExpr":
            # The labels that `without` leaves are unknown: a name that no selector pins represents them.
            without = node.modifier is not None and str(node.modifier.type).endswith("Without")
            labels = ["without"] if without else node.modifier.labels if node.modifier else []
            yield from _metrics(node.expr, (*calls, str(node.op)), (*groupings, frozenset(labels)))
        case "Call":
            for argument in node.args:
                yield from _metrics(argument, (*calls, node.func.name), (*groupings, None))
        case "BinaryExpr":
            yield from _metrics(node.lhs, calls, groupings)
            if str(node.op) not in ("and", "unless"):  # these return series of the left side: the right only filters
                yield from _metrics(node.rhs, calls, groupings)
        case "UnaryExpr" | "SubqueryExpr":
            yield from _metrics(node.expr, calls, groupings)
