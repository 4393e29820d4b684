"""The file stays small, survives a restart, and is replaced when it is damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pilotlight.targets.local.history.history_file import MARGIN_S, MAX_RUNS, HistoryFile
from pilotlight.targets.local.history.points import RESOLUTIONS, Point, Run, Series

NOON = 1_700_000_100 - 1_700_000_100 % 300
IRIS = Series("default", "iris", "iris-predictor", "iris-predictor-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def file(path: Path) -> Iterator[HistoryFile]:
    with closing(HistoryFile(path)) as opened:
        yield opened


def record(file: HistoryFile, start: int, end: int, step: int = 5) -> None:
    """One request in every interval of the run."""
    for at in range(start, end, step):
        file.write({at: {IRIS: Point(1, ready=1)}}, Run(start, at + 5))


def rows(path: Path) -> dict[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT step, count(*) FROM points GROUP BY step"))


def test_a_day_is_kept_at_falling_resolution_and_no_more(file: HistoryFile, path: Path) -> None:
    # A request every minute: the coarser resolutions do not depend on how fine it was.
    record(file, NOON, NOON + 30 * 3600, step=60)
    limits = {step: (span + MARGIN_S) // min(step, 60) + 1 for step, span in RESOLUTIONS}
    assert all(count <= limits[step] for step, count in rows(path).items())
    end = NOON + 30 * 3600
    day = file.read(300, end - 24 * 3600, end)
    assert len(day) == 288
    assert {point.requests for each in day.values() for point in each.values()} == {5}
    assert len(file.read(60, end - 3 * 3600, end)) == 180


def test_the_interval_that_has_not_ended_is_made_of_finer_ones(file: HistoryFile) -> None:
    record(file, NOON, NOON + 400)
    read = file.read(300, NOON, NOON + 400)
    assert {at: each[IRIS].requests for at, each in read.items()} == {NOON: 60, NOON + 300: 20}


def test_a_restart_completes_the_intervals_that_the_run_before_began(path: Path) -> None:
    with closing(HistoryFile(path)) as before:
        record(before, NOON, NOON + 90)
    with closing(HistoryFile(path)) as after:
        record(after, NOON + 200, NOON + 310)
        assert after.runs(0) == [Run(NOON, NOON + 90), Run(NOON + 200, NOON + 310)]
        minutes = {at - NOON: each[IRIS].requests for at, each in after.read(60, NOON, NOON + 310).items()}
        assert minutes == {0: 12, 60: 6, 180: 8, 240: 12, 300: 2}
        assert after.read(300, NOON, NOON + 300)[NOON][IRIS].requests == 18 + 20


def test_services_without_replicas_and_requests_have_no_row(file: HistoryFile, path: Path) -> None:
    for at in range(NOON, NOON + 3600, 60):
        file.write({at: {}}, Run(NOON, at + 5))
    assert rows(path) == {}
    assert file.runs(0) == [Run(NOON, NOON + 3545)]


def test_a_platform_that_restarts_all_day_has_a_bounded_list_of_runs(file: HistoryFile) -> None:
    for number in range(MAX_RUNS + 50):
        file.write({}, Run(NOON + 10 * number, NOON + 10 * number + 5))
    assert len(file.runs(0)) == MAX_RUNS
    assert file.runs(0)[-1].start == NOON + 10 * (MAX_RUNS + 49)


def test_a_damaged_file_is_replaced(path: Path) -> None:
    path.write_bytes(b"this is no database" * 1000)
    with closing(HistoryFile(path)) as file:
        record(file, NOON, NOON + 10)
        assert len(file.read(5, NOON, NOON + 10)) == 2
