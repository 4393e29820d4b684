"""The recorder by a clock of the test: what it samples, what a pause leaves, and what idle services cost."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from pilotlight.gateway.control_link import BackendReport
from pilotlight.targets.local.history.history_file import HistoryFile
from pilotlight.targets.local.history.points import ServiceHistory, resolution
from pilotlight.targets.local.history.recorder import Recorder
from pilotlight.targets.local.manifests.service_spec_types import Probe
from pilotlight.targets.local.supervisor import gpus
from pilotlight.targets.local.supervisor.gpus import Device
from pilotlight.targets.local.supervisor.replica_record import Checks, Replica, State

NOON = 1_700_000_100 - 1_700_000_100 % 300
KEY = ("default", "iris")
WORKLOAD, REVISION = "iris-predictor", "iris-predictor-1"


def replica(number: int = 1, state: State = "ready", devices: tuple[int, ...] = ()) -> Replica:
    return Replica(f"r{number}", *KEY, WORKLOAD, REVISION, Checks(Probe("/ready", 1)), state=state, gpus=devices)


def report(requests: int = 10, errors: int = 0, cold_starts: int = 0) -> BackendReport:
    return BackendReport(*KEY, WORKLOAD, REVISION, 1.0, requests, errors, 0, 0, cold_starts)


class Bench:
    """A recorder, its clock, and the replicas that run."""

    def __init__(self, path: Path) -> None:
        self.now = float(NOON)
        self.replicas: list[Replica] = []
        self.recorder = Recorder(path, lambda: self.replicas, lambda: self.now)

    async def sample(self, count: int = 1, after_s: float = 5.0) -> None:
        for _ in range(count):
            self.now += after_s
            await self.recorder.sample(self.now)

    async def read(self, seconds: int) -> ServiceHistory:
        return await self.recorder.history(KEY, seconds, resolution(seconds), 0.0, {WORKLOAD})


@asynccontextmanager
async def bench(path: Path) -> AsyncIterator[Bench]:
    made = Bench(path)
    yield made
    await made.recorder.close()


def run(path: Path, play: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench(path) as made:
            await play(made)

    asyncio.run(main())


def test_reports_and_replicas_of_an_interval_become_a_point(tmp_path: Path) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica(1), replica(2, "starting"), replica(3, "draining")]
        made.recorder.report(KEY, report(10, errors=1, cold_starts=1))
        made.recorder.report(KEY, report(15))
        await made.sample(2)
        told = await made.read(10)
        assert told.at == (NOON, NOON + 5)
        assert told.service.requests_per_second == (5.0, 0.0)
        assert told.service.error_percent == (4.0, None)
        assert told.service.cold_starts == (1, 0)
        assert (told.service.ready, told.service.starting) == ((1, 1), (1, 1))
        assert [each.revision for each in told.revisions] == [REVISION]

    run(tmp_path / "history.db", play)


def test_replicas_that_end_are_a_step_to_zero(tmp_path: Path) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica(1), replica(2)]
        await made.sample(2)
        made.replicas = []
        await made.sample(2)
        assert (await made.read(20)).service.ready == (2, 2, 0, 0)

    run(tmp_path / "history.db", play)


def test_while_the_platform_is_down_there_is_a_gap_and_what_was_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.db"

    async def before(made: Bench) -> None:
        made.replicas = [replica()]
        await made.sample(2)

    async def after(made: Bench) -> None:
        made.now = NOON + 20.0
        made.replicas = [replica()]
        await made.sample(2)
        assert (await made.read(30)).service.ready == (1, 1, None, None, 1, 1)

    run(path, before)
    run(path, after)


@pytest.mark.parametrize(("pause_s", "ready"), [(15.0, (1, 1, 1, 1)), (20.0, (1, None, None, None, 1))])
def test_a_late_sample_fills_what_it_missed_but_not_the_sleep_of_a_laptop(
    tmp_path: Path, pause_s: float, ready: tuple[int | None, ...]
) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica()]
        await made.sample()
        made.recorder.report(KEY, report(30))
        await made.sample(after_s=pause_s)
        told = (await made.read(int(5 + pause_s))).service
        assert told.ready == ready
        assert told.requests_per_second[-1] == 6.0

    run(tmp_path / "history.db", play)


def test_a_timer_that_fires_early_and_a_clock_set_back_count_nothing_twice(tmp_path: Path) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica()]
        await made.sample(3)
        made.recorder.report(KEY, report(5))
        await made.sample(after_s=0.01)
        await made.sample(after_s=-3.0)
        await made.sample(after_s=8.0)
        assert (await made.read(20)).service.requests_per_second == (0.0, 0.0, 0.0, 1.0)

    run(tmp_path / "history.db", play)


def test_while_nothing_runs_the_file_is_written_once_a_minute_and_has_no_points(tmp_path: Path) -> None:
    written: set[tuple[int, int]] = set()

    async def play(made: Bench) -> None:
        for _ in range(60):  # five minutes
            await made.sample()
            with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
                written.update(connection.execute("SELECT end, (SELECT count(*) FROM points) FROM runs"))
        assert (await made.read(300)).service.ready == (0,) * 60

    run(tmp_path / "history.db", play)
    assert len(written) == 5
    assert {points for _, points in written} == {0}


def test_memory_of_gpus_is_that_of_the_devices_a_service_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_devices", lambda: [Device(0, 100), Device(1, 7), Device(2, 30)])

    async def play(made: Bench) -> None:
        made.replicas = [replica(1, devices=(0,)), replica(2, devices=(2,))]
        await made.sample()
        assert (await made.read(5)).service.gpu_bytes == (130,)

    run(tmp_path / "history.db", play)


def test_a_disk_that_cannot_be_written_stops_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica()]
        await made.sample(3)

    run(tmp_path / "missing" / "history.db", play)
    assert [each for each in caplog.messages if "not recorded" in each][1:] == []
    assert "history.db" in caplog.text


def test_a_query_of_a_dashboard_is_answered_from_the_history(tmp_path: Path) -> None:
    rate = "sum by (inference_service) (rate(pilotlight_request_duration_seconds_count[$__rate_interval]))"
    ready = 'sum by (inference_service) (pilotlight_replicas{state="ready"})'

    async def play(made: Bench) -> None:
        made.replicas = [replica()]
        for _ in range(24):
            made.recorder.report(KEY, report(10))
            await made.sample()
        made.replicas = []
        await made.sample(after_s=60.0)  # asleep
        await made.sample(3)
        told = await made.recorder.query(rate, 900, resolution(900))
        (series,) = told.series
        assert (told.source, told.reason, series.labels) == ("history", "", {"inference_service": "iris"})
        assert 2.0 in [value and round(value, 1) for value in series.values]
        (series,) = (await made.recorder.query(ready, 900, resolution(900))).series
        values = dict(zip(told.at, series.values, strict=True))
        assert values[NOON + 100] == 1.0
        assert values[NOON + 150] is None  # not the last value before the pause
        desired = 'sum(pilotlight_replicas{state="desired"}) or count(pilotlight_requests_in_flight)'
        for query in ("nv_gpu_utilization", desired, "quantile by (phase) (0.95, pilotlight_replicas)", "sum("):
            unanswered = await made.recorder.query(query, 900, resolution(900))
            assert unanswered.reason
            assert not unanswered.series

    run(tmp_path / "history.db", play)


def test_the_file_can_be_read_by_the_next_process(tmp_path: Path) -> None:
    async def play(made: Bench) -> None:
        made.replicas = [replica()]
        await made.sample()

    run(tmp_path / "history.db", play)
    file = HistoryFile(tmp_path / "history.db")
    assert [run.end for run in file.runs(0)] == [NOON + 5]
    file.close()
