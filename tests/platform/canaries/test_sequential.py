"""However often the data are looked at, a good canary is called bad with chance ALPHA at most."""

from pilotlight.canaries.canary_state import Measurement
from pilotlight.canaries.statistics import ALPHA, SUSPICIOUS, alpha_spent, assess, next_look


def test_all_looks_together_spend_no_more_than_the_budget() -> None:
    total = sum(3 * alpha_spent(look, 3) for look in range(1, 100_000))
    assert 0.99 * ALPHA < total <= ALPHA


def test_no_look_gets_more_than_one_before_it() -> None:
    assert all(alpha_spent(look) > alpha_spent(look + 1) > 0 for look in range(1, 500))


def test_looks_are_counted_from_what_is_kept_even_when_the_oldest_are_gone() -> None:
    assert next_look(()) == 1
    kept = [Measurement("p99_ms", "", "Successful", look=look) for look in (41, 42)]
    assert next_look(kept) == 43


def test_a_chance_is_worse_perhaps_or_fine() -> None:
    assert assess(alpha_spent(5, 2), 5, 2) == "significant"
    assert assess(alpha_spent(5, 2) * 1.01, 5, 2) == "suspicious"
    assert assess(SUSPICIOUS * 1.01, 5, 2) == "insignificant"
