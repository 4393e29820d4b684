"""A canary on the screen: where it is, what was measured, and how that went."""

from msgspec.structs import replace

from pilotlight.canaries.canary_state import Canary, CanaryHistory, Measurement
from pilotlight.spec.canary_policy import CanaryPolicy
from platformctl.canary import view

AT = "2026-03-01T12:00:00.000Z"
CANARY = Canary(CanaryPolicy(), "iris-predictor-new", "iris-predictor-old", 3, 2, AT, weight=25, step=1, step_at=AT)


def measured(*values: float | None) -> tuple[Measurement, ...]:
    return tuple(
        Measurement("p99_ms", AT, "Successful" if value else "Inconclusive", value, None, 60, "histogram_quantile(…)")
        for value in values
    )


def test_the_page_says_where_it_is_and_what_was_asked() -> None:
    page = "\n".join(view.page(("default", "iris"), replace(CANARY, measurements=measured(10.0, 80.0, 312.0))))
    assert "default/iris: Progressing, 25 % to iris-predictor-new" in page
    assert "5 % → [25 %] → 50 % → 100 %" in page
    assert "iris-predictor-old (generation 2)" in page
    assert "312 ms" in page
    assert "▁▂█" in page
    assert "histogram_quantile(…)" in page


def test_a_line_of_bars_goes_from_the_lowest_to_the_highest() -> None:
    assert view.sparkline([1.0, 1.0]) == "▁▁"
    assert view.sparkline([0.0, 7.0, float("nan"), float("inf"), 3.5]) == "▁█▅"
    assert view.sparkline([]) == ""


def test_who_waits_reads_nothing_that_changes_by_itself() -> None:
    at_work = replace(CANARY, reason="at 25 % for another 7 s at least", measurements=measured(10.0))
    later = replace(at_work, reason="at 25 % for another 6 s at least", measurements=measured(10.0, 11.0))
    assert view.line(at_work) == view.line(later) == ("25 %", "iris-predictor-new: p99_ms Successful")
    paused = replace(CANARY, phase="Paused", reason="too few requests")
    assert view.line(paused) == ("Paused", "at 25 %: too few requests")


def test_the_history_says_how_far_each_came() -> None:
    back = replace(CANARY, phase="RolledBack", weight=0, reason="error_rate is 9 %", ended_at=AT)
    lines = view.history(CanaryHistory(CANARY, (back,)))
    assert [line.split()[2] for line in lines[1:]] == ["Progressing", "RolledBack"]
    assert "25 %" in lines[2]
    assert "error_rate is 9 %" in lines[2]
