"""UTC timestamps as RFC 3339 text."""

from datetime import UTC, datetime


def utc_now(timespec: str = "milliseconds", zone: str = "Z") -> str:
    return format_utc(datetime.now(UTC), timespec, zone)


def format_utc(at: datetime, timespec: str = "milliseconds", zone: str = "Z") -> str:
    """Return the text of a time; `timespec` as in isoformat, `zone` is how UTC is written: Z or +00:00."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", zone)


def parse_utc(text: str) -> datetime:
    """Parse a timestamp, in UTC if it names no zone. Raise ValueError if it is none."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
