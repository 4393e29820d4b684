"""Heuristics on PromQL text: latency or not, NaN, empty results, number of series.

Not a parser: a query is split into tokens, and each metric is classified by the calls around it. Unclear cases give no
finding, except for the number of series, where a missed finding would hide an outage.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

STRING: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
TOKEN: Final = re.compile(r"[A-Za-z_:][\w:]*|\.?\d[\w.]*|\[[^\]]*\]|[(){},]|[=!<>]=|=~|!~|[-+*/%^<>=]|\S")
AGGREGATIONS: Final = frozenset({
    "avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min", "quantile", "stddev",
    "stdvar", "sum", "topk",
})  # fmt: skip
# These return one series per selected element, so they do not aggregate to one.
PICKING: Final = frozenset({"topk", "bottomk", "count_values", "limitk", "limit_ratio"})
ONE_BY_NATURE: Final = frozenset({"scalar", "absent", "absent_over_time", "vector"})
MODIFIERS: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
WORDS: Final = frozenset({"and", "or", "unless", "offset", "bool", "atan2", "inf", "nan", "start", "end"})

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
    groupings: tuple[frozenset[str] | None, ...] = ()  # of each call; None: no grouping

    @property
    def is_one_series(self) -> bool:
        pinned = self.pinned | ({"le"} if "histogram_quantile" in self.calls else set())
        return any(
            call in ONE_BY_NATURE or (call in AGGREGATIONS - PICKING and (grouping or frozenset()) <= pinned)
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
    return list(_Reader(query).metrics())


@dataclass(slots=True)
class _Level:
    """One pair of parentheses: its call, and whether only the presence of its series matters."""

    call: str = ""
    grouping: frozenset[str] | None = None
    presence_only: bool = False


@dataclass(slots=True)
class _Reader:
    query: str
    tokens: list[str] = field(default_factory=list)
    at: int = 0

    def metrics(self) -> Iterator[Metric]:
        self.tokens = TOKEN.findall(STRING.sub('""', self.query))
        levels = [_Level()]
        while self.at < len(self.tokens):
            word = self.tokens[self.at]
            self.at += 1
            if word == "(":
                levels.append(_Level(presence_only=levels[-1].presence_only))
            elif word == ")":
                levels = levels[:-1] or [_Level()]
            elif word in {"and", "unless", "or"}:
                # `a and b` returns series of a: b only filters them.
                levels[-1].presence_only = word != "or" or (len(levels) > 1 and levels[-2].presence_only)
            elif word[0].isalpha() or word[0] in "_:{":
                yield from self._word(word, levels)

    def _word(self, word: str, levels: list[_Level]) -> Iterator[Metric]:
        if word in MODIFIERS:
            self._labels()
        elif self._peek() == "(" or word in AGGREGATIONS:
            self._open(word, levels)
        elif word not in WORDS and not levels[-1].presence_only:
            pinned = self._pinned(word)
            inside = [level for level in levels if level.call]
            yield Metric(word, pinned, tuple(each.call for each in inside), tuple(each.grouping for each in inside))
        elif self._peek() == "{":
            self._pinned(word)

    def _open(self, call: str, levels: list[_Level]) -> None:
        """Open a call; its grouping may precede the parentheses, `sum by (a) (x)`, or follow them, `sum(x) by (a)`."""
        grouping = None
        if self._peek() in {"by", "without"}:
            grouping = self._grouping()
        if self._peek() == "(":
            self.at += 1
            # `behind` is the index after the parenthesis that closes this one.
            depth, behind = 1, self.at
            while behind < len(self.tokens) and depth:
                depth += {"(": 1, ")": -1}.get(self.tokens[behind], 0)
                behind += 1
            if grouping is None and self._peek(behind) in {"by", "without"}:
                here, self.at = self.at, behind
                grouping = self._grouping()
                self.at = here
            levels.append(_Level(call, grouping, levels[-1].presence_only))

    def _grouping(self) -> frozenset[str]:
        """Return the remaining labels. Those of `without` are unknown: a name that no selector pins represents them."""
        kind = self.tokens[self.at]
        self.at += 1
        labels = self._labels()
        return labels if kind == "by" else frozenset({"without"})

    def _labels(self) -> frozenset[str]:
        labels = set()
        if self._peek() == "(":
            while self.at < len(self.tokens) and self._peek() != ")":
                labels.add(self._peek())
                self.at += 1
            self.at += 1
        return frozenset(labels - {"(", ","})

    def _pinned(self, word: str) -> frozenset[str]:
        """Skip `{…}` and return its labels with an equality matcher."""
        if word != "{":
            if self._peek() != "{":
                return frozenset()
            self.at += 1
        begin = self.at
        while self.at < len(self.tokens) and self._peek() != "}":
            self.at += 1
        inside = self.tokens[begin : self.at]
        self.at += 1
        return frozenset(label for label, sign in pairwise(inside) if sign == "=")

    def _peek(self, index: int | None = None) -> str:
        where = self.at if index is None else index
        return self.tokens[where] if where < len(self.tokens) else ""
