"""Models that could not be warmed up: `Ready, unverified` until their first answer, rolled back if it never comes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.embedded.models import STANDARD, python_service, write_model
from tests.embedded import Platform

from pilotlight.k8s.names import ANNOTATION_TOKENS

WORKS = "def predict(x):\n    return {'y': x * 2}\n"
FAILS = "def predict(x):\n    return {'y': weights[x]}\n"
RECOVERS = (
    "calls = []\n\n\ndef predict(x):\n    calls.append(x)\n    if len(calls) < 5:\n"
    "        raise KeyError('not yet')\n    return {'y': x}\n"
)
ASK = "/slow/v2/models/slow/infer"
REQUEST = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [7]}]}


def events(platform: Platform, revision: str, reason: str) -> list[str]:
    recorded = platform.target.events(("default", "slow"), follow=False)
    return [each.message for each in recorded if (each.object, each.reason) == (f"Revision/{revision}", reason)]


def deployed(platform: Platform, folder: Path, source: str, **options: Any) -> str:
    """Deploy a model and return the name of its revision once it is ready."""
    before = {row.name for row in platform.status("slow").revisions} if options.pop("again", False) else set()
    platform.deploy(python_service(write_model(folder, source), **options))

    def ready() -> bool:
        status = platform.status("slow")
        rows = [row for row in status.revisions if row.name not in before]
        return status.phase == "Ready" and bool(rows) and rows[0].percent == 100

    platform.wait(ready, "the revision is ready")
    return platform.status("slow").revisions[0].name


def test_a_model_without_declared_inputs_is_ready_and_unverified_until_it_answers(
    platform: Platform, tmp_path: Path
) -> None:
    revision = deployed(platform, tmp_path / "m", WORKS)
    status = platform.status("slow")
    assert (status.phase, status.verified, status.revisions[0].verified) == ("Ready", False, False)
    assert "has not answered yet: send a request" in status.message
    (condition,) = [each for each in status.conditions if each.type == "Ready"]
    assert (condition.status, condition.reason) == ("True", "Unverified")
    assert events(platform, revision, "Unverified")
    assert platform.ask(ASK, REQUEST).status == 200
    platform.wait(lambda: platform.status("slow").verified, "one answer verifies it")
    assert platform.status("slow").message == ""
    assert events(platform, revision, "Verified")


def test_an_example_of_the_document_verifies_it_before_it_is_ready(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "example.json").write_text(json.dumps(REQUEST))
    revision = deployed(platform, tmp_path / "m", WORKS, model=f"      example: {tmp_path / 'example.json'}")
    assert platform.status("slow").verified
    assert not events(platform, revision, "Unverified")


@pytest.mark.parametrize("annotations", ["", pytest.param(STANDARD, marks=pytest.mark.long)], ids=["serverless", "raw"])
def test_a_release_whose_first_five_answers_are_500_is_rolled_back(
    platform: Platform, tmp_path: Path, annotations: str
) -> None:
    good = deployed(platform, tmp_path / "good", WORKS, annotations=annotations)
    assert platform.ask(ASK, REQUEST).status == 200
    bad = deployed(platform, tmp_path / "bad", FAILS, again=True, annotations=annotations)
    generation = platform.status("slow").generation
    assert platform.ask("/slow/v2/models/slow/infer", {"inputs": 1}).status == 400
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    platform.wait(lambda: platform.status("slow").phase == "Degraded", "it is rolled back")
    status = platform.status("slow")
    assert status.generation == generation + 1
    (serving,) = [row for row in status.revisions if row.percent]
    assert serving.name == good
    assert platform.ask(ASK, REQUEST).status == 200
    (message,) = events(platform, bad, "RolledBack")
    assert status.message == status.rolled_back == message
    assert f"the first 5 responses of {bad} were all 500" in message
    assert "NameError" in message
    assert "weights" in message


def test_a_rollback_admits_no_token_that_was_revoked(platform: Platform, tmp_path: Path) -> None:
    def closed(token: str) -> str:
        return f"    {ANNOTATION_TOKENS}: {hashlib.sha256(token.encode()).hexdigest()}"

    old, new = ({"Authorization": f"Bearer {token}"} for token in ("old", "new"))
    good = deployed(platform, tmp_path / "good", WORKS, annotations=closed("old"))
    assert platform.ask(ASK, REQUEST, headers=old).status == 200
    deployed(platform, tmp_path / "bad", FAILS, again=True, annotations=closed("new"))
    assert [platform.ask(ASK, REQUEST, headers=new).status for _ in range(5)] == [500] * 5
    platform.wait(lambda: platform.status("slow").rolled_back, "it is rolled back")
    platform.wait(lambda: platform.ask(ASK, REQUEST, headers=new).status == 200, "the good model answers")
    assert [row.name for row in platform.status("slow").revisions if row.percent] == [good]
    assert platform.ask(ASK, REQUEST, headers=old).status == 401


def test_without_an_earlier_release_it_is_degraded_and_well_again_after_an_answer(
    platform: Platform, tmp_path: Path
) -> None:
    deployed(platform, tmp_path / "m", RECOVERS.replace("< 5", "< 6"))
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    platform.wait(lambda: platform.status("slow").phase == "Degraded", "its failure is known")
    assert "were all 500" in platform.status("slow").message
    assert "not yet" in platform.status("slow").message
    assert platform.ask(ASK, REQUEST).status == 200
    platform.wait(lambda: platform.status("slow").phase == "Ready", "it has answered")
    assert platform.status("slow").verified


def test_a_model_that_never_answered_is_degraded_at_zero_too(platform: Platform, tmp_path: Path) -> None:
    deployed(platform, tmp_path / "m", FAILS, annotations="    autoscaling.knative.dev/window: 6s")
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    message = platform.wait_phase("Degraded", name="slow").message
    platform.target.scale(("default", "slow"), {"minReplicas": 0})
    platform.wait(lambda: not platform.status("slow").revisions[0].ready, "it is at zero")
    status = platform.status("slow")
    assert (status.phase, status.message, status.verified) == ("Degraded", message, False)


def test_a_rollback_passes_over_what_never_answered_and_happens_once(platform: Platform, tmp_path: Path) -> None:
    good = deployed(platform, tmp_path / "good", WORKS)
    assert platform.ask(ASK, REQUEST).status == 200
    platform.wait(lambda: platform.status("slow").verified, "it has answered")
    deployed(platform, tmp_path / "unasked", FAILS, again=True)
    bad = deployed(platform, tmp_path / "bad", FAILS + "# another\n", again=True)
    generation = platform.status("slow").generation
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    platform.wait(lambda: platform.ask(ASK, REQUEST).status == 200, "the release that had answered serves")
    assert [platform.ask(ASK, REQUEST).status for _ in range(20)] == [200] * 20
    status = platform.wait_phase("Degraded", name="slow")
    assert [row.name for row in status.revisions if row.percent] == [good]
    assert status.generation == generation + 1
    assert len(events(platform, bad, "RolledBack")) == 1


def test_when_all_releases_fail_the_rollbacks_end_and_the_reason_is_shown(platform: Platform, tmp_path: Path) -> None:
    first = deployed(platform, tmp_path / "first", FAILS)
    second = deployed(platform, tmp_path / "second", FAILS + "# another\n", again=True)
    generation = platform.status("slow").generation

    def failing() -> bool:
        platform.ask(ASK, REQUEST)
        return bool(events(platform, first, "Failing"))

    platform.wait(failing, "the first release fails too")
    assert [platform.ask(ASK, REQUEST).status for _ in range(10)] == [500] * 10
    status = platform.wait_phase("Degraded", name="slow")
    assert f"the first 5 responses of {first} were all 500" in status.message
    assert status.generation == generation + 1
    assert [len(events(platform, name, "RolledBack")) for name in (first, second)] == [0, 1]
    restart(platform)
    assert platform.wait_phase("Degraded", name="slow").message == status.message
    assert platform.status("slow").generation == generation + 1
    # By hand it is tried again; there is still nothing to go back to.
    platform.deploy(python_service(write_model(tmp_path / "second", FAILS + "# another\n")))
    platform.wait(lambda: platform.status("slow").phase == "Ready", "it is tried again")
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    assert second in platform.wait_phase("Degraded", name="slow").message
    assert platform.status("slow").generation == generation + 2


def test_four_failures_before_an_answer_are_no_reason_to_roll_back(platform: Platform, tmp_path: Path) -> None:
    deployed(platform, tmp_path / "good", WORKS)
    assert platform.ask(ASK, REQUEST).status == 200
    revision = deployed(platform, tmp_path / "late", RECOVERS, again=True)
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 4 + [200]
    platform.wait(lambda: platform.status("slow").verified, "it has answered")
    assert not events(platform, revision, "RolledBack")


def test_a_later_control_process_knows_of_the_rollback_until_the_next_deploy(
    platform: Platform, tmp_path: Path
) -> None:
    deployed(platform, tmp_path / "good", WORKS)
    assert platform.ask(ASK, REQUEST).status == 200
    deployed(platform, tmp_path / "bad", FAILS, again=True)
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    message = platform.wait_phase("Degraded", name="slow").message
    restart(platform)
    assert platform.wait_phase("Degraded", name="slow").message == message
    platform.deploy(python_service(write_model(tmp_path / "good", WORKS)))  # what serves: no new generation
    assert platform.wait_phase("Ready", name="slow").rolled_back == ""
    restart(platform)
    assert platform.wait_phase("Ready", name="slow").rolled_back == ""


def test_answers_after_a_restart_of_the_control_process_may_not_be_the_first_and_roll_nothing_back(
    platform: Platform, tmp_path: Path
) -> None:
    deployed(platform, tmp_path / "good", WORKS)
    assert platform.ask(ASK, REQUEST).status == 200
    revision = deployed(platform, tmp_path / "bad", FAILS, again=True)
    restart(platform)
    platform.wait(lambda: not platform.status("slow").verified, "its status is read again")
    assert [platform.ask(ASK, REQUEST).status for _ in range(5)] == [500] * 5
    assert "were all 500" in platform.wait_phase("Degraded", name="slow").message
    assert events(platform, revision, "Failing")
    assert not events(platform, revision, "RolledBack")


def restart(platform: Platform) -> None:
    platform.kill_control()
    platform.wait(platform.answers, "the control process to be back")
