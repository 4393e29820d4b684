"""Token usage in the store: totals by day (UTC), service, model and caller, added from the gateway's reports.

Each report is one transaction, so a crash loses at most the tokens of a second. What cannot be written, as on a full
disk, waits in memory for the next report.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway.control_link import Spent, TokenReport
from pilotlight.gateway.token_quotas import DAY
from pilotlight.targets.local.store.schema import Database
from pilotlight.targets.target import UsageRow
from pilotlight.wire.service_access import team_of

ENV_DAYS: Final = "PILOTLIGHT_USAGE_DAYS"
DEFAULT_DAYS: Final = 400
_ADD: Final = """INSERT INTO token_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, prompt = prompt + excluded.prompt, cached = cached + excluded.cached,
    completion = completion + excluded.completion"""
_SPENT: Final = """SELECT namespace, service, caller, sum(prompt + completion) FROM token_usage WHERE day = ?
    GROUP BY namespace, service, caller"""
log = logging.getLogger(__name__)


class TokenUsage:
    """Used from the thread of the database. `wall` is Unix time. Days older than `days` are deleted."""

    def __init__(self, database: Database) -> None:
        self._database, self.days = database, DEFAULT_DAYS
        self._unwritten: list[tuple[str | int, ...]] = []
        self._pruned = ""

    def add(self, reports: Iterable[TokenReport], wall: float) -> None:
        day = day_of(wall)
        self._unwritten += [
            (day, each.namespace, each.name, each.model, each.caller, each.requests, each.prompt, each.cached,
             each.completion)
            for each in reports
        ]  # fmt: skip
        try:
            with self._database.change() as connection:
                connection.executemany(_ADD, self._unwritten)
                if day != self._pruned:
                    connection.execute("DELETE FROM token_usage WHERE day < ?", (day_of(wall - self.days * DAY),))
        except PlatformError as error:
            log.warning("token usage is not written yet: %s", error)
        else:
            self._unwritten, self._pruned = [], day

    def rows(self, since: str) -> list[UsageRow]:
        """Return the totals from a day `YYYY-MM-DD` on."""
        rows = self._database.rows("SELECT * FROM token_usage WHERE day >= ? ORDER BY 1, 2, 3, 4, 5", (since,))
        names = UsageRow.__struct_fields__
        return [UsageRow(**dict(zip(names, (*row, team_of(row[4])), strict=True))) for row in rows]

    def spent(self, wall: float) -> Spent:
        """Return what callers have spent today."""
        return Spent(int(wall // DAY), tuple(self._database.rows(_SPENT, (day_of(wall),))))


def day_of(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).date().isoformat()


def retention(environ: Mapping[str, str]) -> int:
    """Return the days that are stored. Raise UsageError for a setting that is no number of days."""
    written = environ.get(ENV_DAYS) or str(DEFAULT_DAYS)
    if not written.isdecimal() or not 1 <= int(written) <= 100_000:
        raise UsageError(f"{ENV_DAYS} = {written}, must be a number of days from 1")
    return int(written)
