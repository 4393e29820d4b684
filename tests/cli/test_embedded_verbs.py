"""The verbs on a real platform: one control process, one gateway, real predictors; the tests build on each other."""

import getpass
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from tests.cli.conftest import FLOWER, Call
from tests.embedded import Platform
from tests.eventually import eventually

from pilotlight.canaries.canary_state import Canary, CanaryHistory
from pilotlight.canaries.stored_history import encode_history
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.spec.canary_policy import CanaryPolicy
from platformctl import main, targets
from platformctl.commands.platform import top
from platformctl.services.model_pins import resolve

GRAPH = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: flowers}
spec:
  nodes:
    root: {routerType: Ensemble, steps: [{name: first, serviceName: iris}]}
"""

pytestmark = pytest.mark.usefixtures("at_home")


def shares(call: Call) -> dict[str, int]:
    revisions = json.loads(call("status", "iris", "-o", "json").out)["revisions"]
    return {each["name"]: each["percent"] for each in revisions if each["percent"]}


@pytest.fixture(scope="module")
def names(platform: Platform, folder: Path) -> tuple[str, str]:
    """The revisions of both documents, as a plan names them."""

    def revision(file: str) -> str:
        capabilities = replace(Capabilities(), **platform.target.capabilities())
        documents = resolve(read(Sources([str(folder / file)])), capabilities, "compare", local=True)
        (one,), _ = prepare(ReleaseRequest(documents, capabilities), None)
        return one.plan.workloads[0].revision

    return revision("iris.yaml"), revision("new.yaml")


def test_a_deploy_says_what_happens_and_ends_with_the_url(
    call: Call, folder: Path, platform: Platform, names: tuple[str, str]
) -> None:
    done = call("deploy", "-f", str(folder / "iris.yaml"))
    assert done.code == 0, done.err
    assert done.out == f"http://127.0.0.1:{platform.address.gateway_port}/iris\n"
    phases = [line.split()[1] for line in done.err.splitlines()]
    assert phases[:2] == ["Validated", "Applied"]
    assert phases[-1] == "Ready"
    assert f"100 % to {names[0]}" in done.err


def test_the_same_again_changes_nothing(call: Call, folder: Path) -> None:
    assert call("diff", "-f", str(folder / "iris.yaml")).code == 0
    assert "(unchanged)" in call("deploy", "-f", str(folder / "iris.yaml")).err


def test_a_difference_to_what_runs_is_shown_and_nothing_is_done(
    call: Call, folder: Path, names: tuple[str, str]
) -> None:
    difference = call("diff", "-f", str(folder / "new.yaml"))
    assert difference.code == 1
    service, field, heading, *objects = difference.out.splitlines()
    assert (service, field) == ("default/iris: 1 field changed", "  spec.predictor.maxReplicas: 3 → 4")
    assert heading == "manifests:"
    assert [line.split()[:2] for line in objects] == [["changed", "Service"], ["changed", "Route"]]
    whole = call("diff", "-f", str(folder / "new.yaml"), "--manifests")
    assert whole.out.startswith(f"{service}\n{field}\n")
    assert "+        autoscaling.knative.dev/max-scale: '4'" in whole.out
    document = json.loads(call("diff", "-f", str(folder / "new.yaml"), "-o", "json").out)[0]
    assert document["fields"] == [{"path": "spec.predictor.maxReplicas", "old": 3, "new": 4}]
    done = call("deploy", "-f", str(folder / "new.yaml"), "--diff", "--dry-run")
    assert done.code == 0, done.err
    assert "+        autoscaling.knative.dev/max-scale: '4'" in done.out
    checked = call("deploy", "-f", str(folder / "new.yaml"), "--dry-run", "server")
    assert (checked.code, checked.out) == (0, f"default/iris {names[1]}\n"), checked.err
    told = json.loads(call("deploy", "-f", str(folder / "new.yaml"), "--diff", "--dry-run", "server", "-o", "json").out)
    assert told["services"][0]["revisions"] == [names[1]]
    assert told["changes"][0]["change"] == "changed"
    assert shares(call) == {names[0]: 100}


def test_status_and_list_in_every_format(call: Call, platform: Platform, names: tuple[str, str]) -> None:
    platform.wait(lambda: bool(platform.status().revisions[0].decision), "the first decision")
    page = call("status", "iris").out
    assert page.startswith("default/iris: Ready, serverless\n")
    assert f"  {names[0]}  100 %    1/1       Loaded" in page
    assert max(len(line) for line in page.splitlines() if "100 %" in line or "REVISION" in line) <= 80
    assert "last decision: " in page
    assert call("list", "-o", "name").out == "default/iris\n"
    assert call("status", "iris", "-o", "url").out.endswith("/iris\n")
    assert json.loads(call("list", "-o", "json").out)["services"][0]["name"] == "iris"
    listed = call("list").out
    assert f"iris  default    Ready  1/1       100 % {names[0].rpartition('-')[2]}  http://" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert "  serverless  " in call("list", "-o", "wide").out
    told = json.loads(call("status", "iris", "-o", "json").out)["revisions"][0]["cold_start"]
    assert all(seconds == round(seconds, 3) for seconds in told.values())


@pytest.mark.parametrize("kind", ["data", "json", "npy", "binary", "stdin"])
def test_a_flower_is_asked_for_in_every_way(
    kind: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    flower = np.array(json.loads(FLOWER), dtype="<f4")
    np.save(tmp_path / "flower.npy", flower)
    (tmp_path / "flower.json").write_text(FLOWER)
    (tmp_path / "flower.bin").write_bytes(flower.tobytes())
    monkeypatch.setattr("sys.stdin", io.StringIO(FLOWER))
    typed = {
        "data": ("--data", FLOWER), "json": ("--file", str(tmp_path / "flower.json")), "stdin": ("--data", "-"),
        "npy": ("--file", str(tmp_path / "flower.npy")), "binary": ("--binary", str(tmp_path / "flower.bin")),
    }  # fmt: skip
    done = call("infer", "iris", *typed[kind])
    assert done.code == 0, done.err
    heading, row = done.out.splitlines()
    assert heading.split() == ["OUTPUT", "TYPE", "SHAPE", "VALUES"]
    assert row.split()[:4] == ["y", "FP32", "[1,3]", "0.999207"]
    assert "response in " in done.err


def test_top_shows_the_load(call: Call) -> None:
    def row() -> dict[str, Any]:
        (only,) = json.loads(call("top", "-o", "json").out)["services"]
        return dict(only)

    eventually(lambda: row()["requests_per_second"] and row()["p99_ms"], "the requests to be counted",
               check=lambda: call("infer", "iris", "--data", FLOWER))  # fmt: skip
    assert (row()["name"], row()["namespace"], row()["ready"], row()["queue"]) == ("iris", "default", 1, 0)
    heading, line = call("top").out.splitlines()
    assert heading.split() == " ".join(top.HEADING).split()
    assert line.split()[:3] == ["iris", "default", "Ready"]


def test_top_is_redrawn_in_place_on_a_terminal(platform: Platform) -> None:
    screen, terminal = pty.openpty()
    # A shell starts background jobs with SIGINT ignored, which they inherit.
    program = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); runpy.run_module("
    command = [sys.executable, "-c", f"{program}'platformctl', run_name='__main__')", "top", "--interval", "0.2"]
    shown = b""
    with subprocess.Popen(command, stdout=terminal, env=platform.env) as process:
        try:
            while shown.count(b"\x1b[H") < 3:  # the table, and again
                shown += os.read(screen, 4096)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert shown.count(b"REQ/S") >= 2
    os.close(screen)
    os.close(terminal)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("status ", {"iris"}), ("status x", set()), ("wait default/", set()), ("list --target k", {"kubernetes"}),
        ("logs iris --replica ", {"REPLICA", "OLD"}), ("rollback iris --to ", {"OLD", "1"}), ("list -n ", {"default"}),
        ("traffic iris ", {"OLD=", "latest="}),
        ("traffic iris latest=10,", {"latest=10,OLD=", "latest=10,latest="}),
    ],
)  # fmt: skip
def test_a_shell_completes_live_names(
    line: str, completed: set[str], platform: Platform, names: tuple[str, str]
) -> None:
    *args, incomplete = line.split(" ")
    shell = ShellComplete(main.platformctl, {}, "platformctl", "_PLATFORMCTL_COMPLETE")
    replica = platform.status().revisions[0].replicas[0].name
    expected = {each.replace("OLD", names[0]).replace("REPLICA", replica) for each in completed}

    def completes() -> bool:
        return {each.value for each in shell.get_completions(args, incomplete)} == expected

    eventually(completes, f"{expected} to be completed")  # a busy machine may take longer than the limit


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("iris",), 0), (("iris", "--for", "zero", "--timeout", "0.2"), 4), (("nosuch",), 3),
        (("nosuch", "--for", "deleted"), 0), (("iris", "--for", "canary"), 3),
    ],
)  # fmt: skip
def test_wait_has_an_exit_code_for_each_outcome(words: tuple[str, ...], code: int, call: Call) -> None:
    done = call("wait", *words)
    assert done.code == code, done.err
    assert bool(done.out) == (code == 0)


def test_a_service_is_profiled_through_the_gateway(call: Call) -> None:
    done = call("profile", "iris", "--seconds", "0.05", "-o", "json")
    assert done.code == 0, done.err
    assert [row["model"] for row in json.loads(done.out)["models"]] == ["iris"]


def test_a_wrong_question_is_told_as_the_model_tells_it(call: Call) -> None:
    assert call("infer", "iris", "--data", "[1, 2, 3]").code == 2
    assert "--file flower.json" in call("infer", "iris", "--data", "@flower.json").err
    done = call("infer", "iris", "--data", FLOWER, "--model", "nobody")
    assert done.code == 3
    assert "--model names the model; there are iris\n" in done.err
    tags = (("--tag", "nobody"), "the tag nobody"), (("-H", "X-Pilotlight-Tag: nobody"), "tag or name 'nobody'")
    for flags, words in tags:
        done = call("infer", "iris", "--data", FLOWER, *flags)
        assert (done.code, words in done.err) == (3, True), done.err
        assert "--model" not in done.err
    assert call("infer", "nobody", "--data", FLOWER).code == 3


def test_a_graph_is_asked_with_a_whole_request(call: Call, folder: Path) -> None:
    (folder / "graph.yaml").write_text(GRAPH)
    assert call("deploy", "-f", str(folder / "graph.yaml")).code == 0
    request = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": json.loads(FLOWER)}]}
    done = call("infer", "flowers", "--data", json.dumps(request))
    assert done.code == 0, done.err
    assert json.loads(done.out)["first"]["model_name"] == "iris"
    done = call("infer", "flowers", "--data", FLOWER)
    assert (done.code, "InferenceGraph, which has no inputs of its own" in done.err) == (2, True)
    limited = call("infer", "flowers", "--data", json.dumps(request), "--max-tokens", "5")
    assert (limited.code, "--max-tokens is for one model" in limited.err) == (2, True)
    assert call("delete", "flowers").code == 0


def test_a_canary_gets_its_share_and_is_taken_back(call: Call, folder: Path, names: tuple[str, str]) -> None:
    old, new = names
    without = call("canary", "start", "iris", "--steps", "20,50")
    assert (without.code, without.err.splitlines()[0]) == (
        2, "error: give a MODEL or -f FILE: no canary of default/iris runs"
    )  # fmt: skip
    started = call("canary", "start", "iris", "-f", str(folder / "new.yaml"), "--percent", "20")
    assert started.code == 0, started.err
    assert shares(call) == {new: 20, old: 80}
    told = call("canary", "status", "iris")
    assert f"{new} has 20 % since " in told.err
    assert call("canary", "start", "iris", "--percent", "40").code == 0
    assert shares(call) == {new: 40, old: 60}
    assert call("canary", "abort", "iris").code == 0
    assert shares(call) == {old: 100}
    assert call("diff", "-f", str(folder / "iris.yaml")).code == 0
    assert call("canary", "abort", "iris").code == 3


def test_a_canary_that_never_answered_is_not_promoted(call: Call, folder: Path, names: tuple[str, str]) -> None:
    start = ("canary", "start", "-f", str(folder / "broken.yaml"), "--percent", "50")
    assert call(*start).code == 1
    assert " should have 50 %, has 0 % until it responds since " in call("canary", "status", "iris").err
    refused = call("canary", "promote", "iris")
    assert refused.code == 1
    assert "cannot be promoted: it does not start: " in refused.err
    assert "platformctl canary abort iris" in refused.err
    assert call("canary", "abort", "iris").code == 0
    assert shares(call) == {names[0]: 100}


def test_the_canaries_of_a_service_that_is_not_there_are_not_told_as_none(call: Call) -> None:
    assert (call("canary", "history", "iris").code, call("canary", "history", "nobody").code) == (0, 3)


def test_a_deploy_of_what_a_canary_rolled_back_is_warned_of(call: Call, folder: Path, names: tuple[str, str]) -> None:
    old, new = names
    at, reason = "2026-03-01T12:00:00.000Z", "error_rate is 9 %"
    canary = Canary(CanaryPolicy(), new, old, 3, 2, at, phase="RolledBack", reason=reason, ended_at=at)
    targets.local(start=False).save_canary(("default", "iris"), encode_history(CanaryHistory(canary)), "")
    done = call("deploy", "-f", str(folder / "new.yaml"), "--dry-run=server")
    assert f"warning: {new}: its canary was rolled back at {at}: {reason}" in done.err
    assert "its canary" not in call("deploy", "-f", str(folder / "iris.yaml"), "--dry-run=server").err


def test_a_canary_of_what_runs_already_is_refused(call: Call, folder: Path) -> None:
    done = call("canary", "start", "iris", "-f", str(folder / "iris.yaml"), "--percent", "20")
    assert done.code == 2
    assert "nothing to try" in done.err


def test_a_canary_is_promoted_and_rolled_back_at_once(call: Call, folder: Path, names: tuple[str, str]) -> None:
    old, new = names
    assert call("canary", "start", "-f", str(folder / "new.yaml"), "--percent", "10").code == 0
    assert call("canary", "promote", "iris").code == 0
    assert shares(call) == {new: 100}
    back = call("rollback", "iris")
    assert back.code == 0, back.err
    assert shares(call) == {old: 100}
    assert call("rollback", "iris", "--to", new.rpartition("-")[2]).code == 0
    assert shares(call) == {new: 100}


def test_traffic_by_hand_holds_over_a_deploy_until_it_is_reset(
    call: Call, folder: Path, platform: Platform, names: tuple[str, str]
) -> None:
    old, new = names
    assert shares(call) == {new: 100}
    assert call("traffic", "iris", f"{old.rpartition('-')[2]}=70,latest=30@try").code == 0
    platform.wait(lambda: shares(call) == {new: 30, old: 70}, "a revision without requests to answer and get its share")
    assert call("infer", "iris", "--data", FLOWER, "--tag", "try").code == 0
    kept = call("deploy", "-f", str(folder / "new.yaml"))
    assert f"override kept: iris-predictor traffic {old} 70 % latest 30 %" in kept.err
    assert shares(call) == {new: 30, old: 70}
    refused = call("canary", "start", "-f", str(folder / "iris.yaml"), "--percent", "10")
    assert "is set manually" in refused.err
    assert call("traffic", "iris", "--reset").code == 0
    assert shares(call) == {new: 100}
    assert call("traffic", "iris", "nobody=100").code == 3


def test_going_back_ends_the_shares_that_were_set_by_hand_and_keeps_the_bounds(
    call: Call, names: tuple[str, str]
) -> None:
    old, new = names
    assert call("scale", "iris", "--max", "2").code == 0
    assert call("traffic", "iris", f"{new.rpartition('-')[2]}=100").code == 0
    back = call("rollback", "iris")
    assert back.code == 0, back.err
    assert f"removed the override: iris-predictor traffic {new} 100 %" in back.err
    assert "override kept: iris-predictor maxReplicas 2 (platformctl scale iris --reset clears it)" in back.err
    assert shares(call) == {old: 100}
    assert call("scale", "iris", "--reset").code == 0
    assert call("rollback", "iris", "--to", new).code == 0
    assert shares(call) == {new: 100}


def test_aborting_a_canary_ends_the_shares_that_were_set_by_hand(
    call: Call, folder: Path, names: tuple[str, str]
) -> None:
    old, new = names
    assert call("canary", "start", "-f", str(folder / "iris.yaml"), "--percent", "20").code == 0
    assert call("traffic", "iris", "latest=100").code == 0
    assert shares(call) == {old: 100}
    assert call("canary", "abort", "iris").code == 0
    assert shares(call) == {new: 100}


def test_scale_by_hand_holds_over_a_deploy_and_changes_no_revision(
    call: Call, folder: Path, platform: Platform, names: tuple[str, str]
) -> None:
    done = call("scale", "iris", "--replicas", "2")
    assert done.code == 0, done.err
    assert len(platform.replicas()) >= 2
    kept = call("deploy", "-f", str(folder / "new.yaml"))
    assert "override kept: iris-predictor" in kept.err
    assert shares(call) == {names[1]: 100}
    assert call("deploy", "-f", str(folder / "new.yaml"), "--reset").code == 0
    assert not json.loads(call("status", "iris", "-o", "json").out)["overrides"].get("iris-predictor")
    platform.wait(lambda: len(platform.replicas()) == 1, "the second one to end")
    raised = call("scale", "iris", "--min", "5", "--no-wait")
    assert "max replicas raised to 5: the manifest has 4, below --min 5" in raised.err
    assert call("scale", "iris", "--reset").code == 0


def test_a_model_that_cannot_be_loaded_is_told_while_the_old_one_serves(
    call: Call, folder: Path, names: tuple[str, str]
) -> None:
    done = call("deploy", "-f", str(folder / "broken.yaml"))
    assert done.code == 1
    assert done.out == ""
    (reason,) = re.findall("does not start: model 'iris': (.+)", done.err)
    assert done.err.count(reason) == 1
    assert "last event: " not in done.err, "it says what the reason has said"
    assert f"{names[1]} still serves" in done.err
    (advice,) = re.findall(r"platformctl (logs iris --previous .*)", done.err)
    assert call("infer", "iris", "--data", FLOWER).code == 0
    assert call("status", "iris").out.startswith("default/iris: Degraded")
    listed = call("list")
    assert "Degraded, deploy failed" in listed.out
    assert "default/iris: the last deploy failed: " in listed.err
    waited = call("wait", "iris", "--timeout", "20")
    assert waited.code == 1, waited.err
    assert reason in waited.err
    assert "model.failed" in call(*advice.split()).out
    assert call("rollback", "iris").code == 0
    assert shares(call) == {names[1]: 100}


def test_options_before_the_verb_and_all_namespaces_are_taken_as_kubectl_takes_them(call: Call) -> None:
    everything = call("list", "-o", "name").out
    assert "default/iris" in everything
    assert call("-n", "elsewhere", "list", "-o", "name").out == ""
    assert call("-n", "elsewhere", "list", "-A", "-o", "name").out == everything
    assert "default/iris" in call("-n", "elsewhere", "list", "-n", "default", "-o", "name").out
    assert call("--target", "local", "-n", "elsewhere", "canary", "history", "iris").code == 3
    assert call("-n", "default", "events", "iris").code == 0
    assert "No such option '--namespace'" in call("-n", "default", "version").err


@pytest.mark.parametrize("argv", [("infer", "irs", "--data", FLOWER), ("status", "irs"), ("delete", "elsewhere/iris")])
def test_the_nearest_service_is_named_where_one_does_not_exist(call: Call, argv: tuple[str, ...]) -> None:
    done = call(*argv)
    assert done.code == 3
    assert "did you mean iris? " in done.err


def test_history_lists_releases_with_their_change_and_which_serves(call: Call, names: tuple[str, str]) -> None:
    releases = json.loads(call("history", "iris", "-o", "json").out)["releases"]
    generations = [each["generation"] for each in releases]
    assert generations == sorted(generations, reverse=True)
    assert [each["revisions"] for each in releases if each["percent"]] == [[names[1]]]
    assert releases[0]["percent"] == 100
    assert releases[0]["reason"].startswith("rollback to generation")
    assert releases[1]["failed"]
    changes = [each["text"] for release in releases for each in release["changes"]]
    assert any(each.startswith("spec.predictor.model.storageUri: ") for each in changes)
    heading, newest, broken, *_ = call("history", "iris").out.splitlines()
    assert heading.split() == ["GENERATION", "DEPLOYED", "BY", "REASON", "REVISION", "TRAFFIC", "CHANGE"]
    assert " 100 % " in newest
    assert newest.split()[2] == getpass.getuser()
    assert " failed " in broken
    assert call("history", "nosuch").code == 3


def test_the_audit_log_names_who_deployed_which_model(call: Call, platform: Platform) -> None:
    assert json.loads(call("audit", "verify", "-o", "json").out)["records"] > 1
    lines = (platform.home.audit / "audit.jsonl").read_text().splitlines()
    deploys = [record for record in map(json.loads, lines) if record["event"] == "deploy"]
    assert {record["caller"] for record in deploys} >= {getpass.getuser()}
    assert any(record["service"] == "iris" and record["digest"].startswith("sha256:") for record in deploys)
    assert any("rollback to generation" in record["detail"] for record in deploys)


def test_a_replica_that_does_not_exist_is_an_error_that_lists_those_there_are(call: Call, platform: Platform) -> None:
    done = call("logs", "iris", "--replica", "xx")
    assert done.code == 3
    assert "is called xx; there are " in done.err
    assert platform.status().revisions[0].replicas[0].name in done.err


def test_logs_and_events_of_what_happened(call: Call) -> None:
    assert " ready " in call("logs", "iris").out
    raw = call("logs", "iris", "--tail", "1", "-o", "json").out
    assert json.loads(raw.splitlines()[-1])["event"]
    reasons = [json.loads(line)["reason"] for line in call("events", "iris", "-o", "json").out.splitlines()]
    assert {"Deployed", "Ready", "Failed"} <= set(reasons)
    assert "rollback to generation" in call("events", "iris").out
