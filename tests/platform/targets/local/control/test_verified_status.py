"""What a status says of a model that has, has not, or may have answered."""

from typing import Any

import pytest
from tests.platform.targets.local.control.statuses import conditions, single, told
from tests.platform.targets.local.runs import replica, revision_of

from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.control.verification import unverified_message

ADD = "send a request, or add example.json beside it"


def unverified(**fields: Any) -> ServiceRun:
    run = single()
    first = revision_of(run)
    first.verification = "unverified"
    for name, value in fields.items():
        setattr(first, name, value)
    run.unit_of(first, 0.0).desired = 1
    return run


def test_a_ready_service_whose_model_has_not_answered_is_ready_and_unverified_and_says_what_verifies_it() -> None:
    status = told(unverified(), replica())
    assert (status.phase, status.verified, status.revisions[0].verified) == ("Ready", False, False)
    assert status.message == "its model has not answered yet: " + ADD
    assert conditions(status)["Ready"] == "True"
    assert [each.reason for each in status.conditions if each.type == "Ready"] == ["Unverified"]


def test_a_model_that_rejects_zeros_of_its_declared_inputs_says_why() -> None:
    message = told(unverified(warmup_failure="x must be positive"), replica()).message
    assert message == "its model rejected zeros (x must be positive): " + ADD


@pytest.mark.parametrize("known", ["verified", "unknown"])
def test_a_service_that_has_answered_and_one_that_says_nothing_of_it_are_ready(known: Any) -> None:
    status = told(unverified(verification=known), replica())
    assert (status.phase, status.verified, status.message) == ("Ready", True, "")


def test_a_service_whose_first_answers_failed_with_nothing_to_go_back_to_is_degraded() -> None:
    status = told(unverified(verification="failing", answer_failure="all 500"), replica())
    assert (status.phase, status.message, status.verified) == ("Degraded", "all 500", False)


@pytest.mark.parametrize(
    ("known", "failure", "phase", "message", "reason"),
    [
        ("verified", "", "Standby", "", "Standby"),
        ("unverified", "", "Standby", unverified_message(""), "Unverified"),
        ("failing", "all 500", "Degraded", "all 500", "Degraded"),
    ],
)
def test_a_service_at_zero_is_as_verified_as_its_revision(
    known: Any, failure: str, phase: str, message: str, reason: str
) -> None:
    run = unverified(verification=known, answer_failure=failure)
    run.unit_of(revision_of(run), 0.0).desired = 0
    status = told(run)
    assert (status.phase, status.message, status.verified) == (phase, message, known == "verified")
    assert [each.reason for each in status.conditions if each.type == "Ready"] == [reason]


def test_a_message_names_no_option_that_platformctl_does_not_have() -> None:
    assert "--" not in told(unverified(), replica()).message


def test_a_service_that_was_rolled_back_is_degraded_though_it_serves() -> None:
    run = unverified(verification="verified")
    run.rolled_back = "rolled back to generation 1: all 500"
    status = told(run, replica())
    assert (status.phase, status.message, status.rolled_back) == ("Degraded", run.rolled_back, run.rolled_back)


def test_a_service_is_not_called_ready_before_it_is_known_whether_its_model_has_answered() -> None:
    one = replica()
    run = unverified(verification="unknown", ready_since={one.id: 9.9})
    assert told(run, one).phase == "Progressing"
    assert told(run, replica(status={"state": "ready"})).phase == "Ready"
    assert told(run, one, now=11.0).phase == "Ready"  # its /status cannot be read, such as for want of a token
