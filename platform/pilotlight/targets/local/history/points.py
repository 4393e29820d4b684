"""Points of the history, their downsampling, and the columns that charts draw. Pure: times are arguments.

Times are whole seconds since the epoch. A point is what one revision did in one interval. Merged over time, counts add
up and levels keep their maximum; latencies stay histograms, so that a quantile of five minutes is one of all their
requests and not a mean of quantiles. An interval without a point is zero while the platform ran, and a gap while it did
not: a service at zero costs nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.prometheus import histograms
from pilotlight.targets.target import Key

T = TypeVar("T")


class Resolution(NamedTuple):
    step: int
    span: int


class Run(NamedTuple):
    """Time in which the control process sampled without interruption."""

    start: int
    end: int


class Series(Struct, frozen=True, array_like=True):
    """Identity of a series: one revision of a service."""

    namespace: str
    service: str
    workload: str
    revision: str

    @property
    def key(self) -> Key:
        return self.namespace, self.service


# 180 to 288 points for each range of the console: one every two to six pixels of a chart, beyond which none is seen.
RESOLUTIONS: Final = (Resolution(5, 900), Resolution(60, 3 * 3600), Resolution(300, 24 * 3600))
STEP: Final = RESOLUTIONS[0].step
SPAN: Final = RESOLUTIONS[-1].span
# A sample this late is taken for the intervals that it missed; later ones leave a gap, such as that of a suspended
# laptop.
MAX_LATE_S: Final = 3 * STEP


class Point(Struct, frozen=True, array_like=True):
    """One revision in one interval. The last four are maxima of the samples in it."""

    requests: int = 0
    errors: int = 0
    cold_starts: int = 0
    latencies: tuple[int, ...] = ()  # counts by contract.LATENCY_BUCKETS, as the gateway reports them
    waiting: int = 0
    ready: int = 0
    starting: int = 0
    gpu_bytes: int = 0


class Columns(Struct, frozen=True):
    """One value for each time; None: the platform did not run, or there was nothing to measure."""

    requests_per_second: tuple[float | None, ...]
    p50_ms: tuple[float | None, ...]
    p99_ms: tuple[float | None, ...]
    error_percent: tuple[float | None, ...]
    ready: tuple[int | None, ...]
    starting: tuple[int | None, ...]
    waiting: tuple[int | None, ...]
    cold_starts: tuple[int | None, ...]
    gpu_bytes: tuple[int | None, ...] = ()  # empty: it has used no GPU


class RevisionColumns(Struct, frozen=True):
    revision: str
    workload: str
    columns: Columns


class Mark(Struct, frozen=True):
    """Scaling decision on the time axis."""

    at: float
    message: str


class ServiceHistory(Struct, frozen=True):
    """History of one service: `at` are the starts of intervals of `step` seconds, up to `end`."""

    step: int
    end: int
    at: tuple[int, ...]
    service: Columns  # all revisions; requests, errors and latencies are those of the workloads that receive them
    revisions: tuple[RevisionColumns, ...]
    marks: tuple[Mark, ...] = ()


def resolution(seconds: int, step: int = 0) -> Resolution:
    """Return the resolution of a range: that of `step`, else the finest that covers it. Raise UsageError if none."""
    for each in RESOLUTIONS:
        if seconds <= each.span and step in (0, each.step):
            return each
    offered = ", ".join(f"{each.step} s for up to {each.span} s" for each in RESOLUTIONS)
    raise UsageError(f"the history has no range of {seconds} s" + (f" in steps of {step} s" if step else ""), offered)


def add(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Add histograms; an empty one counts nothing."""
    return tuple(map(sum, zip(first, second, strict=True))) if first and second else first or second


def merged(first: Point, second: Point) -> Point:
    """Return the point of both intervals of one series."""
    return Point(
        first.requests + second.requests, first.errors + second.errors, first.cold_starts + second.cold_starts,
        add(first.latencies, second.latencies), max(first.waiting, second.waiting), max(first.ready, second.ready),
        max(first.starting, second.starting), max(first.gpu_bytes, second.gpu_bytes),
    )  # fmt: skip


def summed(first: Point, second: Point) -> Point:
    """Return the point of both series in one interval."""
    return replace(
        merged(first, second), waiting=first.waiting + second.waiting, ready=first.ready + second.ready,
        starting=first.starting + second.starting, gpu_bytes=first.gpu_bytes + second.gpu_bytes,
    )  # fmt: skip


Samples = Mapping[Series, Point]
Points = Mapping[int, Point]


def downsample(samples: Iterable[tuple[int, Samples]], step: int) -> dict[int, dict[Series, Point]]:
    """Return samples merged into intervals of `step` seconds, which begin at multiples of it."""
    intervals: dict[int, dict[Series, Point]] = {}
    for at, points in samples:
        interval = intervals.setdefault(at - at % step, {})
        for series, point in points.items():
            interval[series] = merged(interval[series], point) if series in interval else point
    return intervals


def missed(last: int | None, at: int) -> range:
    """Return the intervals between two samples that the later one is taken for too; none after a longer pause."""
    if last is None or at - last > MAX_LATE_S:
        return range(0)
    return range(last + STEP, at, STEP)


def service_points(intervals: Mapping[int, Samples], entry: Collection[str]) -> dict[int, Point]:
    """Return the sum of one service's revisions; requests between its own components are not those of its clients."""
    points: dict[int, Point] = {}
    for at, samples in intervals.items():
        for series, point in samples.items():
            if entry and series.workload not in entry:
                point = replace(point, requests=0, errors=0, latencies=(), waiting=0)
            points[at] = summed(points[at], point) if at in points else point
    return points


def columns(points: Points, times: Sequence[int], step: int, runs: Sequence[Run], since: int) -> Columns:
    """Return the values of `times`; before `since` the service did not exist."""
    end = max((run.end for run in runs), default=0)
    rows: list[tuple[Point | None, int]] = []
    for at in times:
        ran = at + step > since and any(run.start < at + step and at < run.end for run in runs)
        rows.append((points.get(at, Point()) if ran else None, max(1, min(step, end - at))))

    def column(value: Callable[[Point, int], T]) -> tuple[T | None, ...]:
        return tuple(None if point is None else value(point, seconds) for point, seconds in rows)

    return Columns(
        column(lambda point, seconds: round(point.requests / seconds, 3)),
        column(lambda point, _: quantile_ms(point.latencies, 0.5)),
        column(lambda point, _: quantile_ms(point.latencies, 0.99)),
        column(lambda point, _: error_percent(point)),
        column(lambda point, _: point.ready),
        column(lambda point, _: point.starting),
        column(lambda point, _: point.waiting),
        column(lambda point, _: point.cold_starts),
        column(lambda point, _: point.gpu_bytes) if any(point.gpu_bytes for point in points.values()) else (),
    )


def error_percent(point: Point) -> float | None:
    return round(100.0 * point.errors / point.requests, 3) if point.requests else None


def quantile_ms(latencies: Sequence[int], share: float) -> float | None:
    milliseconds = histograms.latency_ms(latencies, share)
    return None if milliseconds is None else round(milliseconds, 3)


def service_history(
    intervals: Mapping[int, Samples], chosen: Resolution, window: Run, runs: Sequence[Run], since: int,
    entry: Collection[str],
) -> ServiceHistory:  # fmt: skip
    """Return the columns of one service and of each of its revisions, which begin with their first point."""
    times = tuple(range(window.start - window.start % chosen.step, window.end, chosen.step))
    first = {series: at for at in sorted(intervals, reverse=True) for series in intervals[at]}
    revisions = []
    for series in sorted(first, key=lambda each: (first[each], each.revision)):
        points = {at: samples[series] for at, samples in intervals.items() if series in samples}
        drawn = columns(points, times, chosen.step, runs, max(since, first[series]))
        revisions.append(RevisionColumns(series.revision, series.workload, drawn))
    whole = columns(service_points(intervals, entry), times, chosen.step, runs, since)
    return ServiceHistory(chosen.step, window.end, times, whole, tuple(revisions))
