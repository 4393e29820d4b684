"""Traces of running services: counts from a Prometheus server, or from the local platform's own history of 24 hours."""

import math
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from pilotlight.contract import METRIC_GATEWAY_DURATION, METRIC_REQUEST_DURATION
from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s.timestamps import format_utc
from pilotlight.prometheus.client import range_query
from pilotlight.prometheus.metric_queries import labels
from pilotlight.simulation.trace import CountTrace, TraceError
from pilotlight.simulation.traces.trace_options import TraceOptions

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.local.history.points import ServiceHistory

MAX_POINTS: Final = 10_000  # Prometheus returns at most 11,000 for a series
VARIABLE: Final = "PILOTLIGHT_PROMETHEUS"


def read_prometheus(service: str, options: TraceOptions) -> CountTrace:
    """Return the requests of a service by minute, as Pilotlight's gateway counted them, else its predictors.

    A metric that is absent counts nothing, as predictors of a service at zero; a time without any metric is a gap.
    """
    url, namespace = options.text("url") or os.environ.get(VARIABLE, ""), options.text("namespace", "default")
    seconds, wanted = 3600 * options.number("hours", 24.0), int(options.seconds("step", 60.0))
    zeros = options.choice("gaps", ("error", "zero")) == "zero"
    options.check_read()
    if not url:
        raise UsageError(f"trace {options.trace}: no Prometheus is known", f"add url=http://…, or set {VARIABLE}")
    step = max(wanted, 1, math.ceil(seconds / MAX_POINTS))
    end = int(time.time()) // step * step
    times = range(end - int(seconds) // step * step + step, end + 1, step)
    chosen, window = labels(service, namespace), f"[{step}s]"
    promql = " or ".join(
        f"sum(increase({name}_count{{{chosen}}}{window}))"
        for name in (METRIC_GATEWAY_DURATION, METRIC_REQUEST_DURATION)
    )
    found = range_query(url, promql, times[0], times[-1], step)
    if not found or not any(found[0][1].values()):
        raise NotFound(f"Prometheus at {url} has no requests of {namespace}/{service} in {seconds / 3600:g} hours")
    values = found[0][1]
    scraped = {at for _, series in range_query(url, "count(up)", times[0], times[-1], step) for at in series} or values
    counts = [values.get(at, 0.0) if at in scraped else None for at in times]
    return counted(options.trace, [at - step for at in times], counts, step, zeros=zeros)


def read_history(service: str, options: TraceOptions) -> CountTrace:
    """Return the requests of a service of the local platform, by 5 s, 1 min or 5 min, as its history has the range."""
    from pilotlight.targets.table import connect

    namespace, seconds = options.text("namespace", "default"), round(3600 * options.number("hours", 24.0))
    zeros = options.choice("gaps", ("error", "zero")) == "zero"
    options.check_read()
    target = cast("LocalTarget", connect("local", os.environ, start=False))
    return history_trace(options.trace, target.history((namespace, service), seconds), zeros=zeros)


def history_trace(trace: str, history: "ServiceHistory", *, zeros: bool) -> CountTrace:
    """Return the requests of a recorded history; times in which the platform did not run are gaps."""
    rates = history.service.requests_per_second
    lengths = [min(history.step, max(1, history.end - at)) for at in history.at]
    counts = [None if rate is None else rate * length for rate, length in zip(rates, lengths, strict=True)]
    if not any(counts):
        raise NotFound(f"trace {trace}: the history has no requests of the service in this range")
    return counted(trace, history.at, counts, history.step, zeros=zeros)


def counted(
    trace: str, times: Sequence[int], counts: Sequence[float | None], step: int, *, zeros: bool
) -> CountTrace:  # fmt: skip
    """Return the counts between the first and the last known one. Raise TraceError for a gap, unless `zeros`."""
    known = [index for index, count in enumerate(counts) if count is not None]
    for before, after in pairwise(known):
        if after - before > 1 and not zeros:
            start, end = (
                format_utc(datetime.fromtimestamp(times[each], UTC), "minutes") for each in (before + 1, after)
            )
            hint = "choose a shorter range with hours=N, or count it as no requests with gaps=zero"
            raise TraceError(trace, 0, f"nothing was recorded from {start} to {end}", hint)
    first, last = known[0], known[-1]
    exact = [count or 0.0 for count in counts[first : last + 1]]
    whole = np.diff(np.rint(np.cumsum(exact)), prepend=0.0).astype(np.int64)  # no request is lost by rounding each
    return CountTrace(float(step), whole, start=datetime.fromtimestamp(times[first], UTC))
