"""The contract of targets, as far as Lepton can keep it, against a stand-in of `lep`; and what is of Lepton alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.platform.targets.remote_platform import (
    RemoteGround,
    RemotePlatform,
    environment,
    model_server,
    remote_ground,
)
from tests.platform.targets.target_contract import KEY, SECOND, SECRET, TargetContract, TargetGround

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.lepton.endpoints import LeptonEndpoints, create_arguments, findings
from pilotlight.targets.lepton.workspace import read_document
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.remote.endpoint import EndpointSpec
from pilotlight.targets.target import Share

SHAPE = {"resource_shape": "cpu.small"}
OWN_SECRET = "      env: [{name: HUB_TOKEN, valueFrom: {secretKeyRef: {name: iris, key: HF_TOKEN}}}]"
RATE = "    scaleMetric: rps\n    scaleTarget: 10\n    maxReplicas: 3"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "secrets.json").write_text(json.dumps({"HF_TOKEN": SECRET}))
    return folder


@pytest.fixture(scope="module")
def ground(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteGround]:
    environ = environment(tmp_path_factory.mktemp("lepton"), "lep", LEP_STAND_IN=str(workspace))
    with model_server() as uri:
        platform = RemotePlatform("lepton", environ, SHAPE)
        yield remote_ground(platform, lambda: sorted(notes(workspace)), uri)
    assert not notes(workspace)


def notes(workspace: Path) -> dict[str, Any]:
    """What the workspace knows of each endpoint."""
    files = [file for file in workspace.glob("*.json") if file.name != "secrets.json"]
    return {file.stem: json.loads(file.read_text()) for file in files}


class TestLepton(TargetContract):
    def test_two_replicas_serve_and_one_goes_again(self, ground: TargetGround, workspace: Path) -> None:
        """The workspace balances them itself, behind one address."""
        with ground.deployed(ground.document()):
            (before,) = notes(workspace).values()
            ground.platform.target.scale(KEY, {"minReplicas": 2, "maxReplicas": 2})
            (note,) = notes(workspace).values()
            assert note["pid"] == before["pid"]  # changed in place
            assert note["spec"]["resource_requirement"] == {
                "resource_shape": "cpu.small", "min_replicas": 2, "max_replicas": 2,
            }  # fmt: skip
            assert ground.ready(2)
            assert ground.platform.status().overrides == {"iris-predictor": {"minReplicas": 2, "maxReplicas": 2}}
            ground.platform.target.scale(KEY, None)
            assert ground.ready(1)

    def test_a_new_revision_takes_over_without_a_failed_request(self, ground: TargetGround, workspace: Path) -> None:
        """Only for another image; what `lep endpoint update` cannot change is created again, with a gap."""
        with ground.deployed(ground.document()) as first:
            (name,) = notes(workspace)
            ground.platform.deploy(ground.document(model="      env: [{name: MODE, value: other}]"))
            second = ground.platform.wait_phase("Ready")
            assert [*notes(workspace)] == [name]
            assert second.revisions[0].name != first.revisions[0].name
            assert {"name": "MODE", "value": "other"} in notes(workspace)[name]["spec"]["envs"]
            pid = notes(workspace)[name]["pid"]
            ground.platform.deploy(ground.document(model="      env: [{name: MODE, value: other}]"))
            assert notes(workspace)[name]["pid"] == pid  # nothing changed
            generations = [release.generation for release in ground.platform.target.releases(KEY)]
            assert generations == [second.generation, first.generation]

    def test_a_killed_control_process_finds_its_replicas_again(self, ground: TargetGround) -> None:
        """There is none: each command reads the home, and finds the endpoint by its name."""
        with ground.deployed(ground.document()):
            assert [status.name for status in ground.platform.target.list(None)] == ["iris"]


def test_requests_a_second_become_queries_per_minute(ground: TargetGround, workspace: Path) -> None:
    with ground.deployed(ground.document(predictor=RATE)):
        (note,) = notes(workspace).values()
        assert note["spec"]["auto_scaler"] == {"target_throughput": {"qpm": 420.0}}  # 10 a second, used to 70 %
        assert note["spec"]["resource_requirement"]["max_replicas"] == 3


def test_keys_of_the_services_own_secret_are_secrets_of_the_workspace(ground: TargetGround, workspace: Path) -> None:
    with ground.deployed(ground.document(model=OWN_SECRET)):
        (note,) = notes(workspace).values()
        assert {"name": "HUB_TOKEN", "value_from": {"secret_name_ref": "HF_TOKEN"}} in note["spec"]["envs"]
        assert SECRET not in json.dumps(note)
    with pytest.raises(PlatformError, match="the Lepton workspace has no secret OTHER"):
        ground.platform.deploy(ground.document(model=OWN_SECRET.replace("key: HF_TOKEN", "key: OTHER")))
    assert not notes(workspace)


def test_events_of_the_workspace_are_shown_with_ours(ground: TargetGround) -> None:
    with ground.deployed(ground.document()):
        assert "Started: Lepton, 1 times: kind: Pod" in ground.platform.events(KEY)
        lines = ground.platform.target.logs(KEY, follow=True, previous=False, replica="", tail=5)
        assert any("ready" in line.lower() for line in lines)
        (revision,) = ground.platform.status().revisions
        for name in (revision.name, revision.replicas[0].name):
            assert [*ground.platform.target.logs(KEY, follow=False, previous=False, replica=name, tail=5)]
        with pytest.raises(NotFound, match=r"no replica is called other: .* has one log"):
            ground.platform.target.logs(KEY, follow=False, previous=False, replica="other", tail=5)


def test_an_endpoint_that_somebody_removed_is_a_failure_until_it_is_deployed_again(
    ground: TargetGround, workspace: Path
) -> None:
    with ground.deployed(ground.document()):
        (name,) = notes(workspace)
        ground.platform.target._endpoints._workspace.remove(name)
        status = ground.platform.status()
        assert (status.phase, status.message) == ("Failed", f"lepton has no {name} any more; deploy it again")
        ground.platform.deploy(ground.document())
        ground.platform.wait_phase("Ready")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (SECOND.replace("containerConcurrency: 32", "maxReplicas: 3"), "maxReplicas", "counts queries per minute"),
        ("    canaryTrafficPercent: 10", "canaryTrafficPercent", "it is not behind the Pilotlight gateway"),
    ],
)
def test_what_lepton_cannot_do_is_refused_at_its_line(ground: TargetGround, text: str, line: str, message: str) -> None:
    with pytest.raises(
        PlatformError, match=rf"\.yaml:\d+:\d+: .*spec\.predictor\.{line}: lepton does not support it: .*{message}"
    ):
        ground.platform.deploy(ground.document(predictor=text))


def test_verbs_that_need_our_gateway_are_refused_with_the_tables_sentence(ground: TargetGround) -> None:
    target = ground.platform.target
    for verb, refused in (
        ("split traffic", lambda: target.traffic(KEY, [Share("a", 100)])),
        ("run a canary", lambda: target.save_canary(KEY, "{}", "")),
        ("query metrics", lambda: target.query("up")),
    ):
        with pytest.raises(UsageError, match=f"lepton cannot {verb}: it is not behind the Pilotlight gateway"):
            refused()
    assert (target.canary(KEY), target.canaries(None)) == (None, ())


def test_doctor_checks_program_account_and_shape(ground: TargetGround, tmp_path: Path) -> None:
    environ = ground.platform.env
    assert [(each.level, each.check) for each in findings(environ, SHAPE)] == [
        ("ok", "CLI"), ("ok", "workspace"),
    ]  # fmt: skip
    missing = list(findings({"PATH": str(tmp_path)}, {}))
    assert [(each.level, each.fix) for each in missing] == [("fail", "pip install -U leptonai")]
    lep = tmp_path / "lep"
    lep.write_text("#!/bin/sh\necho 401 Unauthorized >&2\nexit 1\n")
    lep.chmod(0o755)
    assert [(each.level, each.fix) for each in findings({"PATH": f"{tmp_path}:/bin"}, {})][1:] == [
        ("fail", "lep login, or see lep workspace list")
    ]
    assert [each.level for each in findings(environ, {})] == ["ok", "ok", "fail"]


def test_an_endpoint_is_open_and_in_a_node_group_only_where_that_was_asked_for() -> None:
    shape = ["--resource-shape", "cpu.small", "--replicas-static", "1"]
    assert create_arguments(endpoint(SHAPE)) == shape
    wishes = {**SHAPE, "dedicated_node_group": "ng", "image_pull_secret": "ngc", "access": "open"}
    assert create_arguments(endpoint(wishes)) == [
        *shape, "--node-group", "ng", "--image-pull-secrets", "ngc", "--allow-unauthenticated-access",
    ]  # fmt: skip


def endpoint(options: dict[str, str]) -> EndpointSpec:
    container = ContainerSpec("main", "example.com/server:1", (), (), {}, 8080, options=options)
    return EndpointSpec(KEY, "iris-1", "r", "w", "predictor", "raw", container, 1, 1)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("Ready", "ready"),
        ("Not Ready", "pending"),
        ("Scaling", "pending"),
        ("Stopped", "stopped"),
        ("Deleting", "stopped"),
        ("Error", "failed"),
    ],
)
def test_words_of_lepton_are_states_of_endpoints(word: str, state: str, tmp_path: Path) -> None:
    lep = tmp_path / "lep"
    lep.write_text(f"#!/bin/sh\necho Using workspace x\necho '{json.dumps({'status': {'state': word}})}'\n")
    lep.chmod(0o755)
    seen = LeptonEndpoints({"PATH": f"{tmp_path}:/bin"}).get(endpoint(SHAPE))
    assert seen is not None
    assert (seen.state, word in seen.reason) == (state, state != "ready")


def test_a_document_is_read_from_among_other_lines() -> None:
    assert read_document('Using workspace x\n{"status": {"state": "Ready"}}\ndone\n') == {"status": {"state": "Ready"}}
    with pytest.raises(PlatformError, match="did not print JSON"):
        read_document("Traceback …")
