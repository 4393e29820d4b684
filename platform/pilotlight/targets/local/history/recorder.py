"""Sampling of the history: what the gateway reports and what runs, every five seconds, written by a thread of its own.

The event loop only adds up reports and copies replica states; SQLite and the GPU driver are used by the thread. While
nothing runs, a sample is a look at an empty list, and the file is written once a minute, to record that the platform
ran.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pilotlight.errors import PlatformError
from pilotlight.gateway.control_link import BackendReport
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.history.history_file import HistoryFile
from pilotlight.targets.local.history.points import (
    STEP,
    Point,
    Resolution,
    Run,
    Samples,
    Series,
    ServiceHistory,
    merged,
    missed,
    service_history,
    summed,
)
from pilotlight.targets.local.history.range_query import RangeResult, evaluate
from pilotlight.targets.local.supervisor import gpus
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import Key

IDLE_WRITE_S: Final = 60
STARTING: Final = frozenset({"waiting", "pending", "starting", "waking", "unready"})  # as in a status
DeviceBytes = Mapping[int | str, int]
T = TypeVar("T")
log = logging.getLogger(__name__)


def reported(report: BackendReport) -> Point:
    return Point(report.requests, report.errors, report.cold_starts, tuple(report.latencies), report.waiting)


def sampled(reports: Samples, replicas: Iterable[Replica], used: DeviceBytes) -> dict[Series, Point]:
    """Return the samples of an interval: what was reported in it, and the replicas that run at its end."""
    samples = dict(reports)
    for replica in replicas:
        ready, starting = int(replica.state == "ready"), int(replica.state in STARTING)
        gpu_bytes = sum(used.get(device, 0) for device in replica.gpus)
        if ready or starting or gpu_bytes:
            series = Series(replica.namespace, replica.service, replica.workload, replica.revision)
            point = Point(ready=ready, starting=starting, gpu_bytes=gpu_bytes)
            samples[series] = summed(samples[series], point) if series in samples else point
    return samples


def levels(samples: Samples) -> dict[Series, Point]:
    """Return samples without their counts, for an interval that the sampler missed."""
    return {
        series: Point(waiting=point.waiting, ready=point.ready, starting=point.starting, gpu_bytes=point.gpu_bytes)
        for series, point in samples.items()
    }


def interval(now: float) -> int:
    """Return the start of the interval that a sample at about its end is for."""
    return (round(now / STEP) - 1) * STEP


class Recorder:
    """Used from one event loop; `wall` is the clock in seconds since the epoch. Without `start` it records nothing."""

    def __init__(
        self, path: Path, replicas: Callable[[], Iterable[Replica]], wall: Callable[[], float] = time.time
    ) -> None:
        self._path, self._replicas, self._wall = path, replicas, wall
        self._reports: dict[Series, Point] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._file: HistoryFile | None = None  # of the thread
        self._run: Run | None = None
        self._written = 0
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop())

    async def close(self) -> None:
        """Stop sampling and record the end of this run."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            await self._in_thread(partial(self._write, {}, self._run))
        await self._in_thread(self._close_file)
        self._thread.shutdown()

    def report(self, key: Key, report: BackendReport) -> None:
        """Add what the gateway reports about a revision of the service."""
        series = Series(*key, report.workload, report.revision)
        point, before = reported(report), self._reports.get(series)
        self._reports[series] = merged(before, point) if before else point

    async def history(
        self, key: Key, seconds: int, chosen: Resolution, since: float, entry: Collection[str]
    ) -> ServiceHistory:
        """Return the history of one service, which exists since that time and receives requests at these workloads."""

        def read() -> ServiceHistory:
            intervals, runs = self._read(chosen, window, key)
            return service_history(intervals, chosen, window, runs, int(since), entry)

        window = self._window(seconds)
        return await self._in_thread(read)

    async def query(self, promql: str, seconds: int, chosen: Resolution) -> RangeResult:
        def read() -> RangeResult:
            intervals, runs = self._read(chosen, window)
            return evaluate(promql, intervals, chosen, window, runs)

        window = self._window(seconds)
        return await self._in_thread(read)

    def _window(self, seconds: int) -> Run:
        end = self._run.end if self._run else int(self._wall())
        return Run(end - seconds, end)

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(STEP - self._wall() % STEP)
            with log_and_continue("recording the history"):
                await self.sample(self._wall())

    async def sample(self, now: float) -> None:
        """Record the interval that ends at about `now`, once, and those that a late sample missed."""
        at, run = interval(now), self._run
        last = run.end - STEP if run else None
        if last is not None and last - STEP <= at <= last:
            return  # woken early, or the clock was set back a little
        late = missed(last, at)
        self._run = Run(run.start if run and (late or at == run.end) else at, at + STEP)
        replicas, reports, self._reports = list(self._replicas()), self._reports, {}
        if replicas or reports or at - self._written >= IDLE_WRITE_S:
            self._written = at
            await self._in_thread(partial(self._record, at, late, reports, replicas, self._run))

    def _record(self, at: int, late: range, reports: Samples, replicas: list[Replica], run: Run) -> None:
        used = {each.id: each.used_bytes for each in gpus.find_devices()} if any(r.gpus for r in replicas) else {}
        samples = sampled(reports, replicas, used)
        self._write({**dict.fromkeys(late, levels(samples)), at: samples}, run)

    def _write(self, samples: Mapping[int, Samples], run: Run | None) -> None:
        try:
            if run is not None:
                self._opened().write(samples, run)
            self._failed = False
        except PlatformError as error:
            if not self._failed:  # once, until it works again
                log.warning("the history is not recorded: %s", error)
            self._failed = True

    def _read(self, chosen: Resolution, window: Run, key: Key | None = None) -> tuple[Mapping[int, Samples], list[Run]]:
        file = self._opened()
        runs = [run for run in file.runs(window.start) if self._run is None or run.start != self._run.start]
        start = window.start - window.start % chosen.step
        return file.read(chosen.step, start, window.end, key), [*runs, *([self._run] if self._run else [])]

    def _opened(self) -> HistoryFile:
        if self._file is None:
            self._file = HistoryFile(self._path)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
