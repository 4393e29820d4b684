"""Schedules of KEDA's cron trigger: whether a moment lies between a start and an end, each given by cron."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

# Bounds of minute, hour, day of the month, month and day of the week, with the names of the last two.
_FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_PART: Final = re.compile(r"(\*|\?|\w+)(?:-(\w+))?(?:/(\d+))?")
_YEARS: Final = 5  # within which a time must come: 29 February does


@dataclass(frozen=True, slots=True)
class CronTimes:
    """Minutes at which a cron expression is due, in local time."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    either_day: bool  # both kinds of days are restricted: one of them is enough

    def after(self, local: datetime) -> datetime:
        """Return the next time. Raise ValueError if there is none for years."""
        first = local.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = first.replace(hour=0, minute=0)
        for _ in range(366 * _YEARS):
            if self._on(day):
                for hour in self.hours:
                    for minute in self.minutes:
                        if (due := day.replace(hour=hour, minute=minute)) >= first:
                            return due
            day += timedelta(days=1)
        raise ValueError("it is never due")

    def _on(self, day: datetime) -> bool:
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (by_month or by_week if self.either_day else by_month and by_week)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`replicas` from each start to the next end, in a time zone."""

    start: str
    end: str
    timezone: str
    replicas: int

    def __post_init__(self) -> None:
        """Raise ValueError that says what is wrong."""
        for text in (self.start, self.end):
            parse_cron(text).after(datetime(2026, 1, 1))
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{self.timezone} is not a time zone such as Europe/Berlin") from None

    def active(self, now: datetime) -> tuple[bool, datetime]:
        """Return whether the end comes before the next start, as KEDA decides, and the next change."""
        zone = ZoneInfo(self.timezone)
        local = now.astimezone(zone).replace(tzinfo=None)
        start, end = parse_cron(self.start).after(local), parse_cron(self.end).after(local)
        return end <= start, min(start, end).replace(tzinfo=zone).astimezone(UTC)


def parse_cron(text: str) -> CronTimes:
    """Return the times of five fields. Raise ValueError."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"{text!r} must have five fields: minute, hour, day, month, day of the week")
    minutes, hours, days, months, weekdays = (
        _values(field, low, high, index) for index, (field, (low, high)) in enumerate(zip(fields, _FIELDS, strict=True))
    )
    either = not any(field.startswith(("*", "?")) for field in (fields[2], fields[4]))
    return CronTimes(
        tuple(sorted(minutes)), tuple(sorted(hours)), frozenset(days), frozenset(months), frozenset(weekdays), either
    )


def _values(field: str, low: int, high: int, index: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        first = _number(match[1], index, low) if match else None
        if match is None or first is None:
            raise ValueError(f"{part!r} is not a cron field")
        whole = match[1] in "*?"
        last = _number(match[2], index, low) if match[2] else high if whole or match[3] else first
        if last is None or not low <= first <= last <= high:
            raise ValueError(f"{part!r} must be within {low} and {high}")
        found.update(range(first, last + 1, int(match[3] or 1) or 1))
    return found


def _number(text: str, index: int, low: int) -> int | None:
    if text in ("*", "?"):
        return low
    names = {3: _MONTHS, 4: _DAYS}.get(index, [])
    if text.lower() in names:
        return names.index(text.lower()) + low
    return int(text) if text.isdigit() else None
