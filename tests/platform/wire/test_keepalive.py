"""When a gRPC server pings a silent client, closes, or counts the client's own pings as too many."""

import pytest

from pilotlight.wire.http2.keepalive import CLOSE, IDLE_INTERVAL_S, PING, Keepalive, KeepalivePolicy


def test_a_silent_client_with_calls_is_pinged_and_closed_without_a_response() -> None:
    keepalive = Keepalive(KeepalivePolicy(time_s=10, timeout_s=3), 0)
    assert keepalive.check(0, True) == ("", 10)
    assert keepalive.check(10, True) == (PING, 3)
    assert keepalive.check(12, True) == ("", 1)
    assert keepalive.check(13, True) == (CLOSE, 0)


def test_any_bytes_answer_a_ping() -> None:
    keepalive = Keepalive(KeepalivePolicy(time_s=10, timeout_s=3), 0)
    keepalive.check(10, True)
    keepalive.last_received = 11
    assert keepalive.check(13, True) == ("", 8)
    assert keepalive.check(21, True) == (PING, 3)


def test_a_client_without_calls_is_pinged_only_if_that_is_permitted() -> None:
    assert Keepalive(KeepalivePolicy(time_s=10), 0).check(10, False) == ("", 10)
    assert Keepalive(KeepalivePolicy(time_s=10, permit_without_calls=True), 0).check(10, False) == (PING, 10)


def test_pings_are_as_frequent_as_set_where_the_timeout_is_longer() -> None:
    keepalive = Keepalive(KeepalivePolicy(time_s=10, timeout_s=25), 0)
    assert keepalive.check(10, True) == (PING, 10)
    assert keepalive.check(20, True) == ("", 15)
    keepalive.last_received = 21
    assert keepalive.check(35, True) == (PING, 10)


def strikes(policy: KeepalivePolicy, *times: float, has_calls: bool = True) -> list[bool]:
    keepalive = Keepalive(policy, 0)
    return [keepalive.is_abuse(now, has_calls, 0) for now in times]


def test_pings_sooner_than_the_interval_are_strikes_up_to_the_limit() -> None:
    policy = KeepalivePolicy(min_interval_s=10, max_strikes=2)
    assert strikes(policy, 0, 1, 2, 3) == [False, False, False, True]
    assert strikes(policy, 0, 1, 2, 12, 22) == [False] * 5
    assert strikes(policy, 0, 1, 2, 12, 13) == [False] * 4 + [True]  # a ping in time takes no strike back
    assert strikes(policy._replace(max_strikes=0), *range(50)) == [False] * 50


@pytest.mark.parametrize("permitted", [False, True])
def test_without_calls_pings_must_be_hours_apart_unless_they_are_permitted(permitted: bool) -> None:
    policy = KeepalivePolicy(min_interval_s=10, max_strikes=1, permit_without_calls=permitted)
    assert strikes(policy, 0, 60, 120, has_calls=False) == [False, False, not permitted]
    assert strikes(policy, 0, IDLE_INTERVAL_S, 2 * IDLE_INTERVAL_S, has_calls=False) == [False] * 3


def test_data_that_was_sent_clears_the_strikes() -> None:
    keepalive = Keepalive(KeepalivePolicy(min_interval_s=10, max_strikes=1), 0)
    assert [keepalive.is_abuse(now, True, progress) for now, progress in ((0, 0), (1, 0), (2, 1), (3, 1))] == [
        False
    ] * 4
    assert keepalive.is_abuse(4, True, 1)
