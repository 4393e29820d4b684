"""What to ask of the metrics about one revision, and the answers read as counts. Between targets and judge.

    asked = questions(side)                      PromQL, by what it is for
    answers = {name: target.query(text) …}       the runner; a failure becomes Missing("unreachable", …)
    observed = read(answers, side)               counts, or why there are none

Every question can be answered by Prometheus and by the embedded platform's own evaluator.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from pilotlight.canary.checks import COMPARED, QUANTILES, fill
from pilotlight.canary.model import Policy
from pilotlight.contract import (
    LABEL_NAMESPACE,
    LABEL_REVISION,
    LABEL_SERVICE,
    METRIC_GATEWAY_LOST,
    METRIC_IN_FLIGHT,
    METRIC_REQUEST_DURATION,
)
from pilotlight.histograms import Buckets
from pilotlight.wire import prometheus_text

Question = Literal[
    "buckets", "codes", "seconds", "lost", "buckets before", "codes before", "seconds before", "lost before", "fresh"
]  # fmt: skip

# Prometheus scrapes once a minute unless told otherwise, and sometimes late.
LEAST_WINDOW_S: Final = 90.0
LONGEST_WINDOW_S: Final = 3600.0
WHOLE_SECONDS_FROM_S: Final = 60.0
STALE_INTERVALS: Final = 2
_BEFORE: Final[dict[Question, Question]] = {
    "buckets": "buckets before", "codes": "codes before", "seconds": "seconds before", "lost": "lost before",
}  # fmt: skip


class Sampled(Protocol):
    """One element of an answer."""

    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class Missing(NamedTuple):
    """Why there is nothing to judge. Probes mend `empty` and `nan`, time `early`; the others are the fault of the
    metrics."""

    kind: Literal["empty", "nan", "early", "stale", "unreachable", "unusable"]
    reason: str


class Observed(NamedTuple):
    """What one revision did within the window."""

    requests: float = 0.0
    errors: float = 0.0  # answered with 5xx, by the gateway too where a replica ended without an answer
    buckets: Buckets = ()
    seconds: float = 0.0  # of all requests together
    observed_s: float = 0.0

    @property
    def timed(self) -> float:
        """Requests that were answered, so that somebody knows how long they took."""
        return (self.buckets[-1][1] if self.buckets else 0.0) or self.requests


class Side(NamedTuple):
    """Whom to ask about, and how far back."""

    namespace: str
    service: str
    revision: str
    window_s: float
    fresh_s: float = LEAST_WINDOW_S  # metrics that are older than this are stale
    observed_s: float = 0.0  # of the window, how long the canary has had requests


Answer = Sequence[Sampled] | Missing


def sides(
    namespace: str, service: str, canary: str, stable: str, policy: Policy, observed_s: float
) -> tuple[Side, Side]:
    """The canary's and the baseline's, since the canary had its first share and no longer: a revision that served
    before is not judged by what it did then."""
    window_s = min(observed_s, LONGEST_WINDOW_S)
    fresh_s = max(STALE_INTERVALS * policy.interval_s, LEAST_WINDOW_S)
    return (
        Side(namespace, service, canary, window_s, fresh_s, window_s),
        Side(namespace, service, stable, window_s, fresh_s, window_s),
    )


def lately(side: Side, seconds: float) -> Side:
    """The same revision within the last seconds alone."""
    return side._replace(window_s=min(seconds, LONGEST_WINDOW_S), observed_s=min(seconds, LONGEST_WINDOW_S))


def questions(side: Side) -> dict[Question, str]:
    """PromQL by what it is for: every counter's highest value in the window, and what it was before.

    `increase` would guess at the ends and miss what a counter held when it was first scraped: all of a burst of probes,
    and the first error of every replica. What a replica counted that ended before the window is nobody's: Prometheus
    still tells it for five minutes where it missed the end.
    """
    chosen, window = _selector(side), duration(side.window_s)

    def total(name: str, by: str) -> str:
        return f"sum{by} (max_over_time({name}{{{chosen}}}[{window}]))"

    def before(name: str, by: str) -> str:
        return f"sum{by} ({name}{{{chosen}}} offset {window} and max_over_time({name}{{{chosen}}}[{window}]))"

    buckets, counts, seconds = (f"{METRIC_REQUEST_DURATION}_{suffix}" for suffix in ("bucket", "count", "sum"))

    return {
        "buckets": total(buckets, " by (le)"),
        "codes": total(counts, " by (code)"),
        "seconds": total(seconds, ""),
        "lost": total(METRIC_GATEWAY_LOST, ""),
        "buckets before": before(buckets, " by (le)"),
        "codes before": before(counts, " by (code)"),
        "seconds before": before(seconds, ""),
        "lost before": before(METRIC_GATEWAY_LOST, ""),
        "fresh": f"count(max_over_time({METRIC_IN_FLIGHT}{{{chosen}}}[{duration(side.fresh_s)}]))",
    }


def read(answers: Mapping[Question, Answer], side: Side, *, running: bool = True) -> Observed | Missing:
    """`running`: the revision has replicas, so that somebody should be scraped."""
    for answer in answers.values():
        if isinstance(answer, Missing):
            return answer
    if running and not answers.get("fresh") and side.observed_s >= side.fresh_s:
        newest = f"nothing of {side.revision} was scraped for {side.fresh_s:g} s"
        return Missing("stale", f"{newest}; is Prometheus up, and does it scrape the service?")
    counted = _grown(answers, "codes", "code")
    lost = sum(value for value in _grown(answers, "lost", "").values() if not math.isnan(value))
    requests = sum(counted.values()) + lost
    if math.isnan(requests):
        return Missing("nan", f"the requests of {side.revision} are not a number")
    if requests <= 0:
        return Missing("empty", f"{side.revision} had no request within {duration(side.window_s)}")
    errors = sum(value for code, value in counted.items() if code.startswith("5")) + lost
    seconds = sum(_grown(answers, "seconds", "").values())
    return Observed(requests, errors, _buckets(_grown(answers, "buckets", "le")), seconds, side.observed_s)


def number(answer: Answer, name: str) -> float | Missing:
    """What a query of the user's own gave."""
    if isinstance(answer, Missing):
        return answer
    if len(answer) > 1:
        return Missing("unusable", f"promql {name} gives {len(answer)} series where one is needed; sum them")
    if not answer:
        return Missing("empty", f"promql {name} gives nothing")
    value = answer[0].value
    return Missing("nan", f"promql {name} gives NaN") if math.isnan(value) else value


def asked(policy: Policy, canary: Side, stable: str) -> dict[str, str]:
    """Each check as one query that a person can put to Prometheus; those of the user's own are asked like this."""
    values = {
        "revision": canary.revision, "stable": stable, "namespace": canary.namespace, "service": canary.service,
        "window": duration(max(canary.window_s, LEAST_WINDOW_S)),  # a rate needs two samples
    }  # fmt: skip
    names = {
        **dict.fromkeys(COMPARED if policy.compare else (), ""),
        **{each.name: each.query for each in policy.checks},
    }
    return {name: fill(query, values, name) if query else _figure(name, canary) for name, query in names.items()}


def _figure(name: str, side: Side) -> str:
    """As it may be pasted into Prometheus: the counters of a new revision start with the canary."""
    found = questions(side)
    if name in QUANTILES:
        return f"1000 * histogram_quantile({QUANTILES[name]:g}, {found['buckets']})"
    if name == "mean_ms":
        timed = _only(found["buckets"].replace(" by (le)", ""), 'le="+Inf"')
        return f"1000 * {found['seconds']} / {timed}"
    every = found["codes"].replace(" by (code)", "")
    requests = f"({_or_none(every)} + {_or_none(found['lost'])})"
    if name == "rps":
        return f"{requests} / {max(side.observed_s, 1.0):g}"
    failed = _only(every, 'code=~"5.."')
    return f"({_or_none(failed)} + {_or_none(found['lost'])}) / {requests}"


def _only(query: str, matcher: str) -> str:
    return query.replace("}[", f",{matcher}}}[")


def _or_none(query: str) -> str:
    """A counter that was never scraped has counted nothing."""
    return f"({query} or vector(0))"


def duration(seconds: float) -> str:
    """As PromQL writes it; never longer, since a range must not reach back to before the canary. What a second more or
    less does not change is told in whole ones."""
    thousandths = max(1, math.floor(seconds * 1000))
    whole = thousandths % 1000 == 0 or seconds >= WHOLE_SECONDS_FROM_S
    return f"{thousandths // 1000}s" if whole else f"{thousandths}ms"


def _selector(side: Side) -> str:
    labels = {LABEL_NAMESPACE: side.namespace, LABEL_SERVICE: side.service, LABEL_REVISION: side.revision}
    return prometheus_text.labels(labels)  # matchers are written as labels are


def _grown(answers: Mapping[Question, Answer], question: Question, label: str) -> dict[str, float]:
    """By the label's value; never negative, whatever restarts have done to a counter. NaN stays NaN."""
    before = _numbers(answers.get(_BEFORE[question], ()), label)
    now = _numbers(answers.get(question, ()), label)
    return {name: max(value - before.get(name, 0.0), 0.0) for name, value in now.items()}


def _numbers(answer: Answer, label: str) -> dict[str, float]:
    return {} if isinstance(answer, Missing) else {each.labels.get(label, ""): each.value for each in answer}


def _buckets(counted: Mapping[str, float]) -> Buckets:
    """In order of their edges, never falling: sums of ranges that were scraped at different times may."""
    found: list[tuple[float, float]] = []
    for edge, count in sorted((_edge(text), value) for text, value in counted.items()):
        if math.isfinite(count) and not math.isnan(edge):
            found.append((edge, max(count, found[-1][1] if found else 0.0)))
    return tuple(found)


def _edge(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
