"""SQLite file of the history: one row for each interval of each resolution, which holds the points of all services.

It is apart from the platform's state: no deploy waits for it, no backup carries it, and a damaged one is replaced. An
interval in which nothing ran has no row, so the file has at most 700 rows, however many services are at zero.
"""

import sqlite3
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Raw, msgpack

from pilotlight.errors import PlatformError
from pilotlight.targets.local.history.points import (
    RESOLUTIONS,
    SPAN,
    Point,
    Resolution,
    Run,
    Samples,
    Series,
    downsample,
)
from pilotlight.targets.local.store import backup
from pilotlight.targets.local.store.schema import Database
from pilotlight.targets.target import Key

MIGRATIONS: Final = (
    (
        "CREATE TABLE points (step INTEGER, at INTEGER, samples BLOB NOT NULL, PRIMARY KEY (step, at)) WITHOUT ROWID",
        "CREATE TABLE runs (start INTEGER PRIMARY KEY, end INTEGER NOT NULL)",
    ),
)
# Of rows beyond their span: the coarser interval that is made of them must be complete.
MARGIN_S: Final = RESOLUTIONS[-1].step
MAX_RUNS: Final = 1000
_SERVICES: Final = msgpack.Decoder(dict[str, Raw])  # by namespace/name, decoded where it is wanted
_SAMPLES: Final = msgpack.Decoder(list[tuple[Series, Point]])
_encode: Final = msgpack.Encoder().encode


class HistoryFile:
    """Used from the thread that opened it. A file that cannot be read is replaced by a new one."""

    def __init__(self, path: Path) -> None:
        try:
            self._database = Database(path, MIGRATIONS)
        except PlatformError:
            backup.remove(path)
            self._database = Database(path, MIGRATIONS)
        self._downsampled: dict[int, int] = {}  # end of the coarser intervals that are written, by their step

    def close(self) -> None:
        self._database.close()

    def write(self, samples: Mapping[int, Samples], run: Run) -> None:
        """Write the samples of intervals, the run that took them, and the coarser intervals that ended with it."""
        with self._database.change() as connection:
            connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", run)
            _put(connection, RESOLUTIONS[0].step, samples)
            for fine, coarse in pairwise(RESOLUTIONS):
                self._downsample(connection, fine, coarse, run.end)
            connection.execute(
                "DELETE FROM runs WHERE end < ? OR start <= ifnull((SELECT start FROM runs "
                "ORDER BY start DESC LIMIT 1 OFFSET ?), 0)",
                (run.end - SPAN, MAX_RUNS),
            )
            for step, span in RESOLUTIONS:
                limits = (step, run.end - span - MARGIN_S)
                connection.execute("DELETE FROM points WHERE step = ? AND at < ?", limits)

    def _downsample(self, connection: sqlite3.Connection, fine: Resolution, coarse: Resolution, now: int) -> None:
        """Write the coarse intervals that ended since the last call; the first call repeats those of an earlier run."""
        end = now - now % coarse.step
        start = self._downsampled.get(coarse.step, end - fine.span)
        if start < end:
            _put(connection, coarse.step, downsample(self._rows(fine.step, start, end), coarse.step))
            self._downsampled[coarse.step] = end

    def _rows(self, step: int, start: int, end: int, key: Key | None = None) -> list[tuple[int, Samples]]:
        rows = self._database.rows(
            "SELECT at, samples FROM points WHERE step = ? AND at >= ? AND at < ? ORDER BY at", (step, start, end)
        )
        return [(at, _decode(samples, key)) for at, samples in rows]

    def read(self, step: int, start: int, end: int, key: Key | None = None) -> dict[int, dict[Series, Point]]:
        """Return the intervals of a range, of one service or of all.

        Those that have not ended, or have not been written, are made of finer ones.
        """
        rows: list[tuple[int, Samples]] = []
        for each in reversed([each for each in RESOLUTIONS if each.step <= step]):
            until = end if each == RESOLUTIONS[0] else min(end, self._downsampled.get(each.step, end - end % each.step))
            rows += self._rows(each.step, start, until, key)
            start = max(start, until)
        return downsample(rows, step)

    def runs(self, start: int) -> list[Run]:
        rows = self._database.rows("SELECT start, end FROM runs WHERE end > ? ORDER BY start", (start,))
        return [Run(*row) for row in rows]


def _put(connection: sqlite3.Connection, step: int, intervals: Mapping[int, Samples]) -> None:
    rows = []
    for at, samples in intervals.items():
        services: dict[str, list[tuple[Series, Point]]] = {}
        for series, point in samples.items():
            services.setdefault("/".join(series.key), []).append((series, point))
        if services:
            rows.append((step, at, _encode(services)))
    connection.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?)", rows)


def _decode(encoded: bytes, key: Key | None) -> dict[Series, Point]:
    services = _SERVICES.decode(encoded)
    chosen = services.values() if key is None else filter(None, [services.get("/".join(key))])
    return {series: point for service in chosen for series, point in _SAMPLES.decode(service)}
