"""What a canary promises, on the embedded platform: a good revision promotes itself, a bad one takes itself back."""

import re
from pathlib import Path

from tests.embedded import Load, Platform
from tests.platform.canaries.runner.conftest import ASK, KEY, QUICK, Call, better, current, worse


def test_a_good_revision_promotes_itself(platform: Platform, traffic: Load, call: Call, tmp_path: Path) -> None:
    before = platform.status().revisions[0].name
    done = call("canary", "start", "-f", str(better(tmp_path)), *QUICK)
    assert done.code == 0, done.err + platform.log()
    canary = current(platform)
    assert (canary.phase, canary.weight, canary.stable) == ("Promoted", 100, before)
    platform.wait_phase("Ready", "Standby")
    assert {row.name: row.percent for row in platform.status().revisions if row.percent} == {canary.revision: 100}
    assert not traffic.failed
    assert platform.target.releases(KEY)[0].note == "canary promoted"


def test_a_revision_that_answers_with_errors_takes_itself_back(
    platform: Platform, traffic: Load, call: Call, tmp_path: Path
) -> None:
    before = platform.status().revisions[0].name
    done = call("canary", "start", "-f", str(worse(tmp_path, "raise ValueError('no')")), *QUICK)
    assert done.code == 5, done.err + platform.log()
    assert "rolled back" in done.err
    canary = current(platform)
    assert canary.phase == "RolledBack"
    platform.wait(lambda: platform.status().revisions[0].percent == 100, "all requests to be led back")
    assert {row.name for row in platform.status().revisions if row.percent} == {before}
    assert platform.ask(ASK).status == 200
    (advice,) = re.findall(r"its logs: platformctl (logs iris --replica .*?);", done.err)
    assert "ValueError: no" in call(*advice.split(), "--tail", "-1").out, "also once its replica is gone"


def test_a_revision_that_answers_late_takes_itself_back(
    platform: Platform, traffic: Load, call: Call, tmp_path: Path
) -> None:
    """By the check that it fails; what was asked meanwhile was answered."""
    done = call("canary", "start", "-f", str(worse(tmp_path, "time.sleep(0.8)")), *QUICK, "--min-requests", "8")
    assert done.code == 5, done.err + platform.log()
    assert "p50_ms" in done.err
    assert not traffic.failed
