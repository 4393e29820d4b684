"""Sessions by the clock: who enters, how long it lasts, what half of one is worth."""

import pytest

from pilotlight.console.sessions import IDLE_S, LIFE_S, MOST, TICKET_S, Halves, Sessions

TOKEN = "the-token"


def entered(sessions: Sessions, now: float = 0.0) -> Halves:
    found = sessions.enter(TOKEN, TOKEN, now)
    assert found is not None
    return found


@pytest.mark.parametrize("shown", ["", "the-toke", "the-token ", "THE-TOKEN", "the-tokeñ"])
def test_only_the_token_opens(shown: str) -> None:
    assert Sessions().enter(shown, TOKEN, 0.0) is None


def test_both_halves_are_needed_and_must_be_of_one_session() -> None:
    sessions = Sessions()
    mine, theirs = entered(sessions), entered(sessions)
    assert sessions.holds(mine.cookie, mine.proof, 1.0)
    assert not sessions.holds(mine.cookie, "", 1.0)
    assert not sessions.holds(mine.cookie, theirs.proof, 1.0)
    assert not sessions.holds("", mine.proof, 1.0)
    assert not sessions.holds(mine.proof, mine.cookie, 1.0)


def test_a_session_that_nobody_uses_ends_and_one_in_use_goes_on() -> None:
    sessions = Sessions()
    idle, used = entered(sessions), entered(sessions)
    assert sessions.holds(used.cookie, used.proof, IDLE_S - 1)
    assert not sessions.holds(idle.cookie, idle.proof, IDLE_S)
    assert sessions.holds(used.cookie, used.proof, 2 * IDLE_S - 2)


def test_no_session_outlives_its_day_however_much_it_is_used() -> None:
    sessions, now = Sessions(), 0.0
    mine = entered(sessions)
    while now < LIFE_S:
        assert sessions.holds(mine.cookie, mine.proof, now)
        now += IDLE_S / 2
    assert not sessions.holds(mine.cookie, mine.proof, now)


def test_who_leaves_is_out() -> None:
    sessions = Sessions()
    mine = entered(sessions)
    sessions.leave(mine.cookie)
    assert not sessions.holds(mine.cookie, mine.proof, 0.0)


def test_a_ticket_opens_once() -> None:
    sessions = Sessions()
    ticket = sessions.ticket(0.0)
    assert sessions.enter(ticket, TOKEN, 1.0) is not None
    assert sessions.enter(ticket, TOKEN, 1.0) is None


def test_a_ticket_opens_for_some_minutes_only() -> None:
    sessions = Sessions()
    assert sessions.enter(sessions.ticket(0.0), TOKEN, TICKET_S) is None


def test_the_oldest_gives_way_when_there_are_too_many() -> None:
    sessions = Sessions()
    first, second = entered(sessions), entered(sessions)
    for _ in range(MOST - 1):
        entered(sessions)
    assert not sessions.holds(first.cookie, first.proof, 0.0)
    assert sessions.holds(second.cookie, second.proof, 0.0)
