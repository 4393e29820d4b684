"""What a revision's first answers say about it."""

from typing import Any

import pytest

from pilotlight.targets.local.control.verification import FIRST_ANSWERS, Verification, failure_reason, verification


def said(verified: bool = False, failures: int = 0, state: str = "ready") -> dict[str, Any]:
    return {"state": state, "verified": verified, "unverified_failures": failures}


@pytest.mark.parametrize(
    ("before", "statuses", "after"),
    [
        ("unknown", [], "unknown"),
        ("unknown", [{}, {"state": "ready"}], "unknown"),  # a server that is not ours, or an older one
        ("unknown", [said(state="loading")], "unknown"),
        ("unknown", [said()], "unverified"),
        ("unknown", [said(verified=True)], "verified"),
        ("unverified", [said(failures=FIRST_ANSWERS - 1)], "unverified"),
        ("unverified", [said(failures=FIRST_ANSWERS)], "failing"),
        ("unverified", [said(failures=2), said(failures=3)], "failing"),
        ("unverified", [said(failures=9), said(verified=True)], "verified"),
        ("unverified", [], "unverified"),
        ("failing", [said()], "failing"),
        ("failing", [said(verified=True)], "verified"),
        ("verified", [said(failures=FIRST_ANSWERS)], "verified"),  # another replica, after the revision has answered
    ],
)
def test_one_answer_verifies_a_revision_and_five_errors_first_condemn_it(
    before: Verification, statuses: list[dict[str, Any]], after: Verification
) -> None:
    assert verification(before, statuses) == after


def test_the_reason_has_the_last_error() -> None:
    assert failure_reason("iris-1", "") == "the first 5 responses of iris-1 were all 500"
    assert failure_reason("iris-1", "KeyError: 'x'") == "the first 5 responses of iris-1 were all 500: KeyError: 'x'"
