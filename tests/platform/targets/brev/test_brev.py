"""The contract of targets, as far as Brev can keep it, with stand-ins of `brev`, `ssh` and `docker`."""

import json
import socket
import subprocess
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
from tests.platform.targets.target_contract import KEY, SECRET, TargetContract, TargetGround

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.brev.endpoints import findings
from pilotlight.targets.brev.instances import read_instances
from pilotlight.targets.target import Share

INSTANCE = {"name": "gpu-one", "id": "abc123def", "status": "RUNNING"}
OWN_SECRET = "      env: [{name: HUB_TOKEN, valueFrom: {secretKeyRef: {name: iris, key: HF_TOKEN}}}]"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of docker's stand-in, beside the file of instances."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "docker").mkdir()
    return folder / "docker"


@pytest.fixture(scope="module")
def ground(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteGround]:
    instances = machine.with_name("brev.json")
    instances.write_text(json.dumps([INSTANCE]))
    variables = {"BREV_STAND_IN": str(instances), "SSH_STAND_IN": "gpu-one", "DOCKER_HOST": f"unix://{machine}"}
    environ = environment(tmp_path_factory.mktemp("brev"), "brev", "ssh", "docker", **variables)
    with model_server() as uri:
        platform = RemotePlatform("brev", environ, {"instance_id": "abc123def"})
        yield remote_ground(platform, lambda: sorted(notes(machine)), uri)
    assert not notes(machine)


def notes(machine: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in machine.glob("*.json")}


@pytest.mark.long  # the contract of every target, over ssh; what is Brev's own is tested below
class TestBrev(TargetContract):
    def test_two_replicas_serve_and_one_goes_again(self, ground: TargetGround) -> None:
        with ground.deployed(ground.document()):
            with pytest.raises(UsageError, match=r"minReplicas = 2.*: the service is one container on one instance"):
                ground.platform.target.scale(KEY, {"minReplicas": 2})
            assert not ground.platform.status().overrides

    def test_a_new_revision_takes_over_without_a_failed_request(self, ground: TargetGround, machine: Path) -> None:
        """With a gap: the container is replaced."""
        with ground.deployed(ground.document()) as first:
            ((name, before),) = notes(machine).items()
            ground.platform.deploy(ground.document())
            assert notes(machine)[name] == before  # unchanged
            ground.platform.deploy(ground.document(model="      env: [{name: MODE, value: other}]"))
            second = ground.platform.wait_phase("Ready")
            assert second.revisions[0].name != first.revisions[0].name
            assert second.url == first.url
            assert notes(machine)[name]["pid"] != before["pid"]
            assert ground.platform.ask().status == 200

    def test_a_killed_control_process_finds_its_replicas_again(self, ground: TargetGround) -> None:
        """There is none: each command reads the home, and finds the container by its name."""
        with ground.deployed(ground.document()):
            assert [status.name for status in ground.platform.target.list(None)] == ["iris"]


def test_its_port_is_closed_to_the_network_and_reached_by_a_tunnel(ground: TargetGround, machine: Path) -> None:
    with ground.deployed(ground.document()) as status:
        (note,) = notes(machine).values()
        (published,) = [word for word in note["words"] if word.startswith("--publish=")]
        assert published.startswith("--publish=127.0.0.1:")
        assert status.url == f"http://gpu-one:{published.split(':')[1]}"
        assert status.revisions[0].replicas[0].node == "gpu-one"
        assert "--restart=unless-stopped" in note["words"]
        with ground.platform.target.open_route(status) as route:
            port = int(route.url.rpartition(":")[2])
            assert str(port) not in published
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 1)


def test_the_address_of_the_instance_is_opened_only_where_that_is_asked_for(
    ground: TargetGround, machine: Path
) -> None:
    opened = RemotePlatform("brev", ground.platform.env, {"instance_id": "gpu-one", "address": "instance"})
    opened.deploy(ground.document())
    try:
        status = opened.wait_phase("Ready")
        assert status.url.startswith("http://127.0.0.1:")  # HostName of ssh's configuration
        assert opened.ask().status == 200
        with pytest.raises(UsageError, match="default/iris runs with instance_id = gpu-one, delete it there first"):
            RemotePlatform("brev", ground.platform.env, {"instance_id": "other"}).deploy(ground.document())
    finally:
        ground.delete()


def test_an_open_port_behind_a_firewall_is_reached_by_a_tunnel(ground: TargetGround) -> None:
    environ = {**ground.platform.env, "SSH_HOSTNAME": "gpu-one.invalid"}
    opened = RemotePlatform("brev", environ, {"instance_id": "gpu-one", "address": "instance"})
    opened.deploy(ground.document())
    try:
        assert opened.wait_phase("Ready").url.startswith("http://gpu-one.invalid:")
        assert opened.ask().status == 200
    finally:
        ground.delete()


@pytest.mark.parametrize(
    ("word", "hint"), [("STOPPED", "brev start gpu-one"), ("DEPLOYING", "try again once brev ls shows RUNNING")]
)
def test_an_instance_that_does_not_run_is_refused_with_what_to_do(
    ground: TargetGround, tmp_path: Path, word: str, hint: str
) -> None:
    (tmp_path / "brev.json").write_text(json.dumps([{**INSTANCE, "status": word}]))
    environ = {**ground.platform.env, "BREV_STAND_IN": str(tmp_path / "brev.json")}
    with pytest.raises(PlatformError, match=f"instance_id = abc123def is {word}, must be RUNNING") as refused:
        RemotePlatform("brev", environ, {"instance_id": "abc123def"}).deploy(ground.document())
    assert refused.value.hint == hint


def test_who_is_not_logged_in_is_refused_before_anything_is_stored(ground: TargetGround, tmp_path: Path) -> None:
    brev = tmp_path / "brev"
    brev.write_text("#!/bin/sh\necho 'not logged in' >&2\nexit 1\n")
    brev.chmod(0o755)
    environ = {**ground.platform.env, "PATH": f"{tmp_path}:{ground.platform.env['PATH']}"}
    platform = RemotePlatform("brev", {**environ, "PILOTLIGHT_HOME": str(tmp_path / "home")})
    with pytest.raises(PlatformError, match="brev ls failed: not logged in"):
        platform.deploy(ground.document())
    assert not platform.target.list(None)


def test_an_instance_that_cannot_be_reached_is_no_missing_container(ground: TargetGround) -> None:
    with ground.deployed(ground.document()):
        lost = RemotePlatform("brev", {**ground.platform.env, "SSH_STAND_IN": ""})
        (status,) = lost.target.list(None)
        assert (status.phase, status.conditions[0].status) == ("Unknown", "Unknown")
        assert status.message.startswith("the instance gpu-one cannot be reached: ssh: connect to host")


def test_an_instance_that_was_created_is_deleted_though_it_cannot_be_reached(
    ground: TargetGround, tmp_path: Path
) -> None:
    (tmp_path / "brev.json").write_text("[]")
    variables = {"BREV_STAND_IN": str(tmp_path / "brev.json"), "PILOTLIGHT_HOME": str(tmp_path / "home")}
    platform = RemotePlatform("brev", {**ground.platform.env, **variables, "SSH_STAND_IN": ""})
    with pytest.raises(PlatformError, match=r"docker run on iris-\w+ failed: ssh: connect") as refused:
        platform.deploy(ground.document())
    assert refused.value.hint.endswith("it is billed until deleted: platformctl delete iris --target brev")
    assert platform.status().phase == "Unknown"
    platform.target.delete(KEY)
    assert json.loads((tmp_path / "brev.json").read_text()) == []
    with pytest.raises(NotFound):
        platform.status()


def test_an_ssh_that_hangs_is_unknown_too(ground: TargetGround, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def hang(words: list[str], **how: Any) -> Any:
        if words[0] == "ssh":
            raise subprocess.TimeoutExpired(words, 60)
        return run(words, **how)

    with ground.deployed(ground.document()):
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "run", hang)
            status = ground.platform.status()
        assert status.phase == "Unknown"
        assert "did not answer within 60 s" in status.message


def test_instances_are_read_and_none_is_null() -> None:
    assert read_instances('{"workspaces": null}') == []
    assert read_instances('{"workspaces": [{"name": "a", "id": "b", "status": "RUNNING"}]}')[0].id == "b"
    with pytest.raises(PlatformError, match="printed unexpected output"):
        read_instances("You have 2 instances")


def test_an_instance_is_created_where_none_is_named_and_goes_with_the_service(
    ground: TargetGround, machine: Path, tmp_path: Path
) -> None:
    """Nothing leads to it here, so its deploy fails; what was created is known and can be deleted."""
    environ = {**ground.platform.env, "PILOTLIGHT_HOME": str(tmp_path / "home")}
    platform = RemotePlatform("brev", environ, {"instance_type": "g5.xlarge"})
    with pytest.raises(PlatformError, match=r"docker run on iris-.* failed: ssh: connect to host"):
        platform.deploy(ground.document())
    created = [row for row in json.loads(Path(environ["BREV_STAND_IN"]).read_text()) if row["name"] != "gpu-one"]
    assert [(row["name"][:5], row["instance_type"]) for row in created] == [("iris-", "g5.xlarge")]
    assert any(event.startswith("Failed: docker run on iris-") for event in platform.events(KEY))
    reached = {**environ, "SSH_STAND_IN": "iris-*"}
    with pytest.raises(UsageError, match="default/iris runs with instance_id = none, delete it there first"):
        RemotePlatform("brev", reached, {"instance_id": "gpu-one"}).deploy(ground.document())
    platform.target.delete(KEY)
    assert json.loads(Path(environ["BREV_STAND_IN"]).read_text()) == [INSTANCE]
    assert not platform.target.list(None)


def test_a_value_given_at_the_start_reaches_the_container_by_name(ground: TargetGround, machine: Path) -> None:
    target = ground.platform.target
    with pytest.raises(PlatformError, match="HUB_TOKEN: its value was set at the start and is not stored"):
        ground.platform.deploy(ground.document(model=OWN_SECRET))
    assert not notes(machine)
    target.delete(KEY)
    assert not target.list(None)


@pytest.mark.parametrize("option", ["cloud_cred_id", "workspace_group_id"])
def test_what_brev_create_has_no_flag_for_is_refused(ground: TargetGround, option: str) -> None:
    platform = RemotePlatform("brev", ground.platform.env, {option: "x"})
    with pytest.raises(UsageError, match=rf"{option} = x: brev create has no such flag .*brev/cli") as refused:
        platform.deploy(ground.document())
    assert refused.value.hint == "create the instance in Brev's console with it, then give instance_id"


def test_a_container_that_cannot_start_does_not_pass_for_the_release(ground: TargetGround, machine: Path) -> None:
    with ground.deployed(ground.document()):
        (machine / "refuses").write_text("driver failed: port is already allocated")
        other = ground.document(model="      env: [{name: MODE, value: other}]")
        for _ in range(2):
            with pytest.raises(PlatformError, match=r"docker run on gpu-one failed: .* port is already allocated"):
                ground.platform.deploy(other)
        (machine / "refuses").unlink()
        ground.platform.deploy(other)
        ground.platform.wait_phase("Ready")


def test_an_image_that_cannot_be_pulled_leaves_the_present_container(ground: TargetGround, machine: Path) -> None:
    with ground.deployed(ground.document()):
        (before,) = notes(machine).values()
        (machine / "pulled").unlink()
        with pytest.raises(PlatformError, match=r"manifest for missing.* not found"):
            ground.platform.deploy(ground.document(model="      image: missing.example.com/pilotlight/predictor:1"))
        assert notes(machine).popitem()[1] == before


@pytest.mark.parametrize(
    ("text", "line"), [("    maxReplicas: 3", "maxReplicas"), ("    canaryTrafficPercent: 10", "canaryTrafficPercent")]
)
def test_what_brev_cannot_do_is_refused_at_its_line(ground: TargetGround, text: str, line: str) -> None:
    with pytest.raises(PlatformError, match=rf"\.yaml:\d+:\d+: .*spec\.predictor\.{line}: brev does not support it: "):
        ground.platform.deploy(ground.document(predictor=text))


def test_verbs_that_need_our_gateway_are_refused(ground: TargetGround) -> None:
    with pytest.raises(UsageError, match="brev cannot split traffic: it is not behind the Pilotlight gateway"):
        ground.platform.target.traffic(KEY, [Share("a", 100)])


def test_doctor_checks_programs_account_and_instance(ground: TargetGround, tmp_path: Path) -> None:
    def levels(**options: str) -> list[tuple[str, str]]:
        return [(each.level, each.check) for each in findings(ground.platform.env, options)]

    programs = [("ok", "CLI"), ("ok", "CLI"), ("ok", "account")]
    assert levels() == programs
    assert levels(instance_id="abc123def") == [*programs, ("ok", "instance")]
    assert levels(instance_id="other") == [*programs, ("fail", "instance")]
    assert [each.fix for each in findings({"PATH": str(tmp_path)}, {})] == ["see https://docs.nvidia.com/brev/"]
    brev = tmp_path / "brev"
    brev.write_text("#!/bin/sh\necho 'not logged in' >&2\nexit 1\n")
    brev.chmod(0o755)
    failed = [*findings({"PATH": f"{tmp_path}:{ground.platform.env['PATH']}"}, {})][-1]
    assert (failed.level, failed.check, failed.fix) == ("fail", "account", "brev login")


def test_a_shell_reads_the_script_as_it_was_meant() -> None:
    """With docker a function of bash that prints what it was given."""
    from pilotlight.targets.brev.endpoints import run_script
    from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
    from pilotlight.targets.remote.endpoint import EndpointSpec

    odd = "a'b\"c $(id) `id` \\ \n; exit"
    env = {"HUB_TOKEN": odd, "PATH": odd}
    container = ContainerSpec("main", "example.com/server:1", ("/bin/sh", "-c", odd), (), env, 8080)
    endpoint = EndpointSpec(KEY, "iris-1", "r", "w", "predictor", "raw", container, 1, 1, generation=3)
    script = run_script(endpoint, "none", env)
    docker = 'docker() { case $1 in run) printf "%s\\0" "$HUB_TOKEN" "$@";; image) :;; *) false;; esac; }\n'
    done = subprocess.run(["bash", "-s"], input=docker + script, capture_output=True, text=True, check=True)
    secret, *words = done.stdout.rstrip("\0").split("\0")
    assert (secret, words[-1]) == (odd, odd)
    assert {"--env=HUB_TOKEN", f"--env=PATH={odd}", "--label=dev.pilotlight.generation=3"} <= set(words)
    assert SECRET not in script
