"""The verbs of canaries on a real platform: somebody looks, steers, deploys in between, and kills who runs it."""

import json
from pathlib import Path

from tests.embedded import FLOWER, IRIS, Load, Platform
from tests.platform.canaries.runner.conftest import (
    ASK,
    KEY,
    PACE,
    QUICK,
    Call,
    better,
    current,
    iris,
    ledger,
    worse,
    written,
)

SLOW = ("--steps", "30,60,100", "--bake", "60s", *PACE, "--keep-stable", "60s")
RAISES = "raise RuntimeError('the weights are of another model')"
RAW = "    serving.kserve.io/deploymentMode: RawDeployment"


def started(platform: Platform, call: Call, document: Path, *flags: str) -> str:
    """The canary's revision, once it has requests."""
    done = call("canary", "start", "-f", str(document), *flags, "--no-wait")
    assert done.code == 0, done.err + platform.log()
    platform.wait(lambda: current(platform).weight > 0, "the first step")
    return current(platform).revision


def shares(platform: Platform) -> dict[str, int]:
    return {row.name: row.percent for row in platform.status().revisions if row.percent}


def test_somebody_steers_it(platform: Platform, traffic: Load, call: Call, tmp_path: Path) -> None:
    before, generation = platform.status().revisions[0].name, platform.status().generation
    strange = ("--promql", "most=topk(1, up)", "--max", "most=1")
    refused = call("canary", "start", "-f", str(better(tmp_path)), *QUICK, *strange)
    assert (refused.code, platform.status().generation) == (2, generation), refused.err
    assert "needs --prometheus" in refused.err
    fresh = started(platform, call, better(tmp_path), *SLOW)
    platform.wait(lambda: bool(current(platform).measurements), "a measurement")
    page = call("canary", "status", "iris").out
    assert "[30 %] → 60 % → 100 %" in page
    assert "p50_ms" in page
    assert f'revision="{fresh}"' in page, "the query as it was asked"
    told = json.loads(call("canary", "status", "iris", "-o", "json").out)["canary"]
    assert (told["weight"], told["measurements"][0]["check"]) == (30, "error_rate")

    assert call("canary", "pause", "iris").code == 0
    assert (current(platform).phase, current(platform).reason) == ("Paused", "paused manually")
    assert call("canary", "resume", "iris").code == 0
    assert current(platform).phase == "Progressing"
    assert call("canary", "promote", "iris").code == 0
    assert current(platform).weight == 60
    assert call("canary", "promote", "iris", "--full").code == 0
    platform.wait(lambda: shares(platform) == {fresh: 100}, "all requests to be its")
    assert before in {row.name for row in platform.status().revisions}, "the stable side keeps its replicas"
    assert call("canary", "abort", "iris").code == 0
    assert current(platform).phase == "RolledBack"
    platform.wait(lambda: shares(platform) == {before: 100}, "all requests to be led back")
    assert not traffic.failed
    assert "aborted manually" in call("canary", "history", "iris").out
    reasons = [line.partition(":")[0] for line in platform.events(KEY)]
    assert [each for each in reasons if each.startswith("Canary")] == [
        "CanaryStarted", "CanaryStep", "CanaryPaused", "CanaryResumed", "CanaryStep", "CanaryStep", "CanaryRolledBack",
    ]  # fmt: skip


def test_it_goes_on_after_the_control_process_was_killed(
    platform: Platform, traffic: Load, call: Call, tmp_path: Path
) -> None:
    fresh = started(platform, call, better(tmp_path), "--steps", "30,100", "--bake", "3s", *PACE)
    platform.kill_control()
    platform.wait(platform.answers, "the control process to be back")
    platform.wait(lambda: current(platform).phase == "Promoted", "its promotion")
    platform.wait(lambda: shares(platform) == {fresh: 100}, "all requests to be its")
    assert [each.note for each in platform.target.releases(KEY)].count("canary promoted") == 1
    assert not traffic.failed


def test_without_requests_it_is_asked_with_the_models_example(platform: Platform, call: Call, tmp_path: Path) -> None:
    done = call("canary", "start", "-f", str(better(tmp_path)), *QUICK, "--no-wait")
    assert done.code == 0, done.err + platform.log()
    watched = call("canary", "status", "iris", "-w")
    assert watched.code == 0, watched.err
    pages = [line for line in watched.out.splitlines() if line.startswith("default/iris: ")]
    assert pages[-1].startswith("default/iris: Promoted, 100 %"), "until it ended"
    assert current(platform).phase == "Promoted"
    assert max(each.requests for each in current(platform).measurements) >= 20


def test_another_deploy_in_the_middle_begins_it_anew(
    platform: Platform, traffic: Load, call: Call, tmp_path: Path
) -> None:
    stable = platform.status().revisions[0].name
    first = started(platform, call, better(tmp_path), *SLOW)
    third = written(tmp_path, "third.yaml", iris(most=5))
    assert call("deploy", "-f", str(third), "--no-wait").code == 0
    again = current(platform)
    assert again.revision not in (first, stable)
    assert (again.stable, again.policy.steps) == (stable, (30, 60, 100))
    assert [(each.revision, each.phase) for each in ledger(platform).past][:1] == [(first, "Superseded")]
    platform.wait(lambda: shares(platform) == {again.revision: 30, stable: 70}, "its own first step")
    assert not traffic.failed


def test_a_document_may_say_how_it_wants_to_be_judged(
    platform: Platform, traffic: Load, call: Call, tmp_path: Path
) -> None:
    """By the baseline, with a ratio that no busy machine reaches."""
    block = '{steps: "50,100", bake: 1s, interval: 500ms, min-requests: 10, keep-stable: 0s, ratio: 1000}'
    document = written(tmp_path, "judged.yaml", iris(most=2).replace("spec:\n", f"spec:\n  canary: {block}\n"))
    done = call("deploy", "-f", str(document))
    assert done.code == 0, done.err + platform.log()
    assert (current(platform).phase, current(platform).policy.steps) == ("Promoted", (50, 100))
    assert call("deploy", "-f", str(document)).code == 0, "the same again is no canary"
    assert not ledger(platform).past


def test_a_revision_that_does_not_start_takes_itself_back(platform: Platform, call: Call, tmp_path: Path) -> None:
    before = platform.status().revisions[0].name
    broken = worse(tmp_path, "pass")
    (tmp_path / "worse" / "model.py").write_text(RAISES)
    done = call("canary", "start", "-f", str(broken), *QUICK)
    assert done.code == 5, done.err + platform.log()
    assert "the weights are of another model" in done.err
    assert shares(platform) == {before: 100}
    assert platform.ask(ASK).status == 200


def test_two_deployments_stand_side_by_side_without_knative(platform: Platform, call: Call, tmp_path: Path) -> None:
    """Asked by probes on both sides, since nobody else does."""
    platform.empty()
    generation = platform.deploy(iris(annotations=RAW)).generation
    platform.wait_phase("Ready")
    same = written(tmp_path, "same.yaml", iris(most=2, annotations=RAW))
    missing = call("canary", "start", "-f", str(same), *QUICK, "--example", "@no-such-file")
    assert (missing.code, "--example: no-such-file cannot be read" in missing.err) == (2, True)
    refused = call("canary", "start", "-f", str(same), *QUICK)
    assert (refused.code, platform.status().generation) == (3, generation), "another bound makes no other pods"
    (tmp_path / "model.onnx").write_bytes(IRIS.read_bytes())
    document = written(tmp_path, "raw.yaml", iris((tmp_path / "model.onnx").as_uri(), annotations=RAW))
    example = written(tmp_path, "flower.json", json.dumps(FLOWER))
    done = call("canary", "start", "-f", str(document), *QUICK, "--example", f"@{example}")
    assert done.code == 0, done.err + platform.log()
    assert (current(platform).phase, json.loads(current(platform).policy.example)) == ("Promoted", FLOWER)
    platform.wait(lambda: len(platform.status().revisions) == 1, "one side to be left")
    assert shares(platform) == {current(platform).revision: 100}
