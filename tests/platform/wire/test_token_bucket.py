"""Token buckets: they fill with time, one for each client, in bounded memory."""

from functools import partial

import pytest

from pilotlight.wire.token_bucket import TokenBuckets


def test_a_full_bucket_passes_its_burst_and_then_its_rate() -> None:
    acquire = partial(TokenBuckets().acquire, "ada", 10, 10 / 60)
    assert [acquire(0.0) for _ in range(10)] == [0.0] * 10
    assert acquire(0.0) == pytest.approx(6.0)
    assert acquire(3.0) == pytest.approx(3.0)
    assert acquire(6.0) == 0.0
    assert acquire(6.0) == pytest.approx(6.0)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    acquire = partial(TokenBuckets().acquire, "ada", 3, 100)
    waits = [acquire(0.0) for _ in range(4)] + [acquire(3600.0) for _ in range(4)]
    assert [bool(wait) for wait in waits] == [False, False, False, True] * 2


def test_clients_have_buckets_of_their_own_and_the_least_recently_used_is_evicted() -> None:
    buckets = TokenBuckets(max_clients=2)

    def acquire(client: str, now: float) -> float:
        return buckets.acquire(client, 1, 1 / 3600, now)

    assert [acquire(client, 0.0) for client in ("ada", "bob")] == [0.0, 0.0]
    assert acquire("ada", 1.0) > 0
    assert acquire("eve", 2.0) == 0.0  # evicts bob, as ada was seen later
    assert acquire("ada", 3.0) > 0
    assert len(buckets._buckets) == 2
    assert acquire("bob", 4.0) == 0.0


def test_a_refund_returns_one_token_and_never_more_than_the_burst() -> None:
    buckets = TokenBuckets()
    buckets.refund("ada")
    assert buckets.acquire("ada", 1, 1, 0.0) == 0.0
    buckets.refund("ada")
    buckets.refund("ada")
    assert [bool(buckets.acquire("ada", 1, 1, 0.0)) for _ in range(2)] == [False, True]
