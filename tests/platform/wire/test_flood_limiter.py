"""What a peer may send that brings nothing: so much at once, then as time and answers allow."""

from pilotlight.wire.http2.frames import (
    MAX_TOKENS,
    REFILL_PER_S,
    TOKENS_PER_RESPONSE,
    YOUNG_S,
    FloodLimiter,
    StreamAges,
)


def spent(allowance: FloodLimiter, now: float) -> int:
    """How often it may before it may not."""
    return next(count for count in range(10**6) if not allowance.spend(now))


def test_time_refills_it_and_no_further() -> None:
    allowance = FloodLimiter(now=5.0)
    assert spent(allowance, 5.0) == MAX_TOKENS
    assert abs(spent(allowance, 6.0) - REFILL_PER_S) <= 2
    assert spent(allowance, 1000.0) == MAX_TOKENS


def test_answers_earn_more_than_a_ping_each_costs() -> None:
    allowance = FloodLimiter(now=0.0)
    for _ in range(10 * int(MAX_TOKENS)):
        assert allowance.spend(0.0)
        allowance.earn()
    assert TOKENS_PER_RESPONSE > 1


def test_streams_that_have_lived_are_told_from_those_that_were_opened_to_be_reset() -> None:
    """A hundred streams a second, each reset at 50 ms; then others that are reset at once."""
    ages = StreamAges(now=0.0)
    lived = [ages.is_young(number, number + 5, number / 100) for number in range(20, 500)]
    assert not any(lived[10:])
    assert all(ages.is_young(number, number, 5 + number * YOUNG_S / 10) for number in range(510, 900))
