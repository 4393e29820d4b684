"""Text views of a canary: page, history and progress line. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from platformctl import output

if TYPE_CHECKING:
    from pilotlight.canaries.canary_state import Canary, CanaryHistory, Measurement

BARS: Final = "▁▂▃▄▅▆▇█"
TREND: Final = 20  # latest measurements per check
HEADING: Final = ("CHECK", "VALUE", "BASELINE", "REQUESTS", "VERDICT", "TREND")


def canary_document(canary_history: "CanaryHistory") -> dict[str, Any]:
    """Return the whole stored history for -o json and yaml."""
    from msgspec import to_builtins

    document = {"canary": to_builtins(canary_history.current), "past": to_builtins(canary_history.past)}
    return {name: value for name, value in document.items() if value}


def page(key: tuple[str, str], canary: "Canary") -> list[str]:
    """Return phase, reason, and the latest measurement of every check with its query."""
    latest = latest_by_check(canary.measurements)
    lines = [
        f"{'/'.join(key)}: {canary.phase}, {canary.weight} % to {canary.revision}",
        f"  {canary.reason}" if canary.reason else "",
        *output.columns([
            ("steps", steps(canary)),
            ("beside", f"{canary.stable} (generation {canary.stable_generation})"),
            ("started", canary.started_at + (f", ended {canary.ended_at}" if canary.ended_at else "")),
            *([("requested", canary.command)] if canary.command else []),
            *([("run by", f"{canary.holder}, last seen {canary.renewed_at}")] if canary.holder else []),
        ]),
    ]  # fmt: skip
    if latest:
        rows = [_row(each, canary.measurements) for each in latest.values()]
        lines += ["", *output.columns([HEADING, *rows])]
        for field in ("reason", "query"):
            if remarks := [(each.check, getattr(each, field)) for each in latest.values() if getattr(each, field)]:
                lines += ["", *output.columns(remarks)]
    return [line for index, line in enumerate(lines) if line or index > 1]


def steps(canary: "Canary") -> str:
    """`5 % → [25 %] → 50 % → 100 %`: the current step in brackets."""
    parts = [f"[{step} %]" if step == canary.weight and canary.weight else f"{step} %" for step in canary.policy.steps]
    return " → ".join(parts)


def latest_by_check(measurements: "Sequence[Measurement]") -> "dict[str, Measurement]":
    return {each.check: each for each in measurements}


def _row(latest: "Measurement", measurements: "Sequence[Measurement]") -> tuple[str, ...]:
    from pilotlight.spec.canary_policy import format_value

    values = [each.value for each in measurements if each.check == latest.check and each.value is not None]
    baseline = format_value(latest.check, latest.baseline) if latest.baseline is not None else "-"
    value = format_value(latest.check, latest.value) if latest.value is not None else "-"
    return latest.check, value, baseline, str(latest.requests), latest.verdict, sparkline(values[-TREND:])


def sparkline(values: Sequence[float]) -> str:
    """Return one bar per value, scaled from lowest to highest; equal values are flat."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in finite)


def line(canary: "Canary") -> tuple[str, str]:
    """Return phase and message for the progress log, without figures that change every second."""
    checks = ", ".join(f"{each.check} {each.verdict}" for each in latest_by_check(canary.measurements).values())
    if canary.phase == "Paused":
        return "Paused", f"at {canary.weight} %: {canary.reason}"
    if not canary.weight:
        return "Starting", canary.reason or canary.revision
    return f"{canary.weight} %", f"{canary.revision}" + (f": {checks}" if checks else "")


def history(canary_history: "CanaryHistory") -> list[str]:
    """Return one row per canary, newest first."""
    canaries = [*([canary_history.current] if canary_history.current else []), *canary_history.past]
    # The highest weight it had: a rollback sets the weight to 0.
    reached = [max(each.weight, each.policy.steps[each.step] if each.step_at else 0) for each in canaries]
    rows = [
        (each.started_at, each.revision, each.phase, f"{weight} %", each.reason or "-")
        for each, weight in zip(canaries, reached, strict=True)
    ]
    return output.columns([("STARTED", "REVISION", "PHASE", "REACHED", "REASON"), *rows], indent="")
