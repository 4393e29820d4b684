"""Sessions by the clock: who enters, how long it lasts, what half of one is worth."""

import pytest

from pilotlight.console.sessions import (
    IDLE_TIMEOUT_S,
    MAX_ENTRIES,
    SESSION_TTL_S,
    TICKET_TTL_S,
    Sessions,
    SessionSecrets,
)

TOKEN = "the-token"


def entered(sessions: Sessions, now: float = 0.0) -> SessionSecrets:
    found = sessions.log_in(TOKEN, TOKEN, now)
    assert found is not None
    return found


@pytest.mark.parametrize("shown", ["", "the-toke", "the-token ", "THE-TOKEN", "the-tokeñ"])
def test_only_the_token_opens(shown: str) -> None:
    assert Sessions().log_in(shown, TOKEN, 0.0) is None


def test_both_halves_are_needed_and_must_be_of_one_session() -> None:
    sessions = Sessions()
    mine, theirs = entered(sessions), entered(sessions)
    assert sessions.authenticate(mine.cookie, mine.proof, 1.0)
    assert not sessions.authenticate(mine.cookie, "", 1.0)
    assert not sessions.authenticate(mine.cookie, theirs.proof, 1.0)
    assert not sessions.authenticate("", mine.proof, 1.0)
    assert not sessions.authenticate(mine.proof, mine.cookie, 1.0)


def test_a_session_that_nobody_uses_ends_and_one_in_use_goes_on() -> None:
    sessions = Sessions()
    idle, used = entered(sessions), entered(sessions)
    assert sessions.authenticate(used.cookie, used.proof, IDLE_TIMEOUT_S - 1)
    assert not sessions.authenticate(idle.cookie, idle.proof, IDLE_TIMEOUT_S)
    assert sessions.authenticate(used.cookie, used.proof, 2 * IDLE_TIMEOUT_S - 2)


def test_no_session_outlives_its_day_however_much_it_is_used() -> None:
    sessions, now = Sessions(), 0.0
    mine = entered(sessions)
    while now < SESSION_TTL_S:
        assert sessions.authenticate(mine.cookie, mine.proof, now)
        now += IDLE_TIMEOUT_S / 2
    assert not sessions.authenticate(mine.cookie, mine.proof, now)


def test_who_leaves_is_out() -> None:
    sessions = Sessions()
    mine = entered(sessions)
    sessions.log_out(mine.cookie)
    assert not sessions.authenticate(mine.cookie, mine.proof, 0.0)


def test_a_ticket_opens_once() -> None:
    sessions = Sessions()
    ticket = sessions.issue_ticket(0.0)
    assert sessions.log_in(ticket, TOKEN, 1.0) is not None
    assert sessions.log_in(ticket, TOKEN, 1.0) is None


def test_a_ticket_opens_for_some_minutes_only() -> None:
    sessions = Sessions()
    assert sessions.log_in(sessions.issue_ticket(0.0), TOKEN, TICKET_TTL_S) is None


def test_the_oldest_gives_way_when_there_are_too_many() -> None:
    sessions = Sessions()
    first, second = entered(sessions), entered(sessions)
    for _ in range(MAX_ENTRIES - 1):
        entered(sessions)
    assert not sessions.authenticate(first.cookie, first.proof, 0.0)
    assert sessions.authenticate(second.cookie, second.proof, 0.0)
