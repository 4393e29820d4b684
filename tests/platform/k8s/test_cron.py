"""Cron expressions, and schedules between two of them, in their time zones."""

from datetime import UTC, datetime

import pytest

from pilotlight.k8s.cron import Schedule, parse_cron

WORK = Schedule("0 8 * * 1-5", "0 18 * * mon-fri", "Europe/Berlin", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-11-18 10:31"),
        ("*/15 * * * *", "2026-11-18 10:45"),
        ("0 9 * * *", "2026-11-19 09:00"),
        ("30 10 * * *", "2026-11-19 10:30"),
        ("0 0 1 * *", "2026-12-01 00:00"),
        ("0 0 * * sun", "2026-11-22 00:00"),
        ("0 0 25 * fri", "2026-11-20 00:00"),  # either of both days
        ("5,50 10-11 * nov ?", "2026-11-18 10:50"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
    ],
)
def test_the_next_time_is_cron_s(text: str, expected: str) -> None:
    at = datetime(2026, 11, 18, 10, 30, 20)  # a Wednesday
    assert f"{parse_cron(text).after(at):%Y-%m-%d %H:%M}" == expected


@pytest.mark.parametrize(
    ("moment", "active"),
    [
        ("2026-11-18T06:59", False), ("2026-11-18T07:00", True), ("2026-11-18T16:59", True),
        ("2026-11-18T17:00", False), ("2026-11-21T10:00", False), ("2026-07-15T06:30", True),
    ],
)  # fmt: skip
def test_a_schedule_is_active_between_its_times_in_its_zone(moment: str, active: bool) -> None:
    assert WORK.active(datetime.fromisoformat(moment).replace(tzinfo=UTC))[0] is active


def test_the_next_change_is_known() -> None:
    night = datetime(2026, 11, 20, 20, tzinfo=UTC)  # Friday
    assert WORK.active(night) == (False, datetime(2026, 11, 23, 7, tzinfo=UTC))


@pytest.mark.parametrize(
    ("start", "zone", "problem"),
    [
        ("0 8 * *", "UTC", "must have five fields"),
        ("61 8 * * *", "UTC", "within 0 and 59"),
        ("0 8 * * x", "UTC", "not a cron field"),
        ("0 8 30 2 *", "UTC", "never due"),
        ("0 8 * * *", "Berlin", "not a time zone"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(start: str, zone: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Schedule(start, "0 18 * * *", zone, 1)
