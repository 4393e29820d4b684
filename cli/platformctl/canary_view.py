"""What a canary looks like to a person: its page, its history, the line that says how far it is. Pure."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from platformctl import output

if TYPE_CHECKING:
    from pilotlight.canary.model import Canary, Ledger, Measurement

BARS: Final = "▁▂▃▄▅▆▇█"
TREND: Final = 20  # of the last measurements
HEADING: Final = ("CHECK", "VALUE", "BASELINE", "REQUESTS", "VERDICT", "TREND")


def told(ledger: "Ledger") -> dict[str, Any]:
    """With -o json or yaml: all that is kept, numbers as they are."""
    from msgspec import to_builtins

    found = {"canary": to_builtins(ledger.current), "past": to_builtins(ledger.past)}
    return {name: value for name, value in found.items() if value}


def page(key: tuple[str, str], canary: "Canary") -> list[str]:
    """Where it stands, why, and what every check last said with the query that was asked."""
    latest = latest_by_check(canary.measurements)
    lines = [
        f"{'/'.join(key)}: {canary.phase}, {canary.weight} % to {canary.revision}",
        f"  {canary.reason}" if canary.reason else "",
        *output.columns([
            ("steps", steps(canary)),
            ("beside", f"{canary.stable} (generation {canary.stable_generation})"),
            ("started", canary.started_at + (f", ended {canary.ended_at}" if canary.ended_at else "")),
            *([("asked for", canary.wish)] if canary.wish else []),
            *([("run by", f"{canary.holder}, last seen {canary.renewed_at}")] if canary.holder else []),
        ]),
    ]  # fmt: skip
    if latest:
        rows = [_row(each, canary.measurements) for each in latest.values()]
        lines += ["", *output.columns([HEADING, *rows]), *_remarks(latest.values())]
    return [line for index, line in enumerate(lines) if line or index > 1]


def steps(canary: "Canary") -> str:
    """`5 % → [25 %] → 50 % → 100 %`: the one in brackets is where it is."""
    parts = [f"[{step} %]" if step == canary.weight and canary.weight else f"{step} %" for step in canary.policy.steps]
    return " → ".join(parts)


def latest_by_check(measurements: "Sequence[Measurement]") -> "dict[str, Measurement]":
    return {each.check: each for each in measurements}


def _row(latest: "Measurement", measurements: "Sequence[Measurement]") -> tuple[str, ...]:
    from pilotlight.canary.checks import figure

    values = [each.value for each in measurements if each.check == latest.check and each.value is not None]
    baseline = figure(latest.check, latest.baseline) if latest.baseline is not None else "-"
    value = figure(latest.check, latest.value) if latest.value is not None else "-"
    return latest.check, value, baseline, str(latest.requests), latest.verdict, sparkline(values[-TREND:])


def _remarks(latest: "Iterable[Measurement]") -> list[str]:
    found = [(each.check, each.reason) for each in latest if each.reason]
    queries = [(each.check, each.query) for each in latest if each.query]
    lines = ["", *output.columns(found)] if found else []
    return [*lines, *(["", *output.columns(queries)] if queries else [])]


def sparkline(values: Sequence[float]) -> str:
    """From the lowest to the highest of them; equal ones lie flat."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in finite)


def line(canary: "Canary") -> tuple[str, str]:
    """Phase and message for who waits; without figures that change by themselves every second."""
    checks = ", ".join(f"{each.check} {each.verdict}" for each in latest_by_check(canary.measurements).values())
    if canary.phase == "Paused":
        return "Paused", canary.reason
    if not canary.weight:
        return "Starting", canary.reason or canary.revision
    return f"{canary.weight} %", f"{canary.revision}" + (f": {checks}" if checks else "")


def history(ledger: "Ledger") -> list[str]:
    """Newest first."""
    found = [*([ledger.current] if ledger.current else []), *ledger.past]
    rows = [(each.started_at, each.revision, each.phase, f"{_reached(each)} %", each.reason or "-") for each in found]
    return output.columns([("STARTED", "REVISION", "PHASE", "REACHED", "REASON"), *rows], indent="")


def _reached(canary: "Canary") -> int:
    """The weight that it had at most; a rollback leaves it none."""
    return max(canary.weight, canary.policy.steps[canary.step] if canary.step_at else 0)
