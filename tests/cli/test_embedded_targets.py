"""Verbs of docker and slurm whose programs only the control process has: stand-ins that print what theirs do."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import fake_docker
from tests.cli.conftest import Call
from tests.embedded import IRIS, Platform, serverless

from pilotlight.release.apply import read_release
from platformctl.services import status_views

SLURM = {"sinfo": "gpu|up|1", "scontrol": f"NodeName=a NodeHostName={os.uname().nodename}"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("programs")
    env = fake_docker.installed(folder)
    for name, printed in SLURM.items():
        (folder / "programs" / name).write_text(f"#!/bin/sh\necho '{printed}'\n")
        (folder / "programs" / name).chmod(0o755)
    with Platform(tmp_path_factory.mktemp("home"), {**env, "XDG_STAND_IN": str(folder)}, name="docker") as running:
        yield running


@pytest.fixture(autouse=True)
def at_home(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(platform.home.root))
    for name in ("DOCKER_HOST", "SLURM_PARTITION", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)


def checks(call: Call, *words: str) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(call("doctor", *words, "-o", "json").out)["checks"]}


def test_doctor_asks_the_control_process(call: Call) -> None:
    assert checks(call, "--target", "docker")["daemon"]["level"] == "ok"
    assert checks(call, "--target", "slurm", "--target-option", "partition=gpu")["partition"]["level"] == "ok"
    other = checks(call, "--target", "docker", "--target-option", "docker_host=unix:///other")["daemon"]
    assert "the control process has DOCKER_HOST = none" in other["message"]
    conf = checks(call, "--target", "slurm", "--target-option", "conf=/other")["controller"]
    assert "SLURM_CONF = /other, but the control process has none" in conf["message"]


def test_a_partition_that_does_not_exist_is_refused_before_anything_is_stored(
    call: Call, platform: Platform, tmp_path: Path
) -> None:
    (tmp_path / "iris.yaml").write_text(serverless().replace("minReplicas: 0", "minReplicas: 1"))
    words = ("deploy", "-f", str(tmp_path / "iris.yaml"), "--target", "slurm")
    done = call(*words, "--target-option", "partition=gqu")
    assert (done.code, done.out) == (1, "")
    assert "slurm: gqu: the cluster has no such partition" in done.err
    assert "--target-option partition=gpu" in done.err
    assert not platform.target.list_all(None)


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("docker", ["network=nosuch"], "docker: network = nosuch: the daemon has no such network"),
        ("docker", ["ulimits=memlock=-1,foo"], "ulimits = foo, must be NAME=SOFT[:HARD]"),
        ("slurm", ["partition=gpu", "time=foo"], "time = foo, must be in the format of sbatch"),
        ("docker", ["network=team", "ulimits=memlock=-1,nofile=1024:4096"], ""),
        ("slurm", ["partition=gpu", "time=1-12:30"], ""),
    ],
)
def test_a_dry_run_by_the_server_refuses_what_a_deploy_would(
    call: Call, platform: Platform, tmp_path: Path, target: str, options: list[str], problem: str
) -> None:
    (tmp_path / "iris.yaml").write_text(serverless(uri=IRIS.as_uri()).replace("minReplicas: 0", "minReplicas: 1"))
    words = ("deploy", "-f", str(tmp_path / "iris.yaml"), "--target", target, "--dry-run=server")
    done = call(*words, *(f"--target-option={option}" for option in options))
    assert (done.code == 0, problem in done.err) == (not problem, True), done.err
    assert not platform.target.list_all(None)


def test_a_partition_that_is_missing_is_told_before_the_platform_is_started(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    done = call("deploy", "-f", "examples/services/iris.yaml", "--target", "slurm")
    assert done.code == 2
    assert "PL371" in done.err  # errors of the document come first
    assert "slurm needs partition" not in done.err
    one = ("--set", "spec.predictor.minReplicas=1")
    done = call("deploy", "-f", "examples/services/iris.yaml", "--target", "slurm", *one)
    assert done.code == 2
    assert "slurm needs partition" in done.err
    assert not (tmp_path / "home").exists()


def test_list_names_the_targets_that_have_services(call: Call, platform: Platform) -> None:
    assert status_views.notes_on_other_targets(None, None) == []
    platform.deploy(serverless(uri=IRIS.as_uri()))
    done = call("list")
    assert "no services" in done.err
    assert "1 on docker: platformctl list --target docker" in done.err
    assert "1 on docker" not in call("list", "--target", "docker").err
    assert "1 on docker" not in call("list", "-n", "other").err
    elsewhere = call("delete", "iris", "--target", "slurm")
    assert (
        elsewhere.code,
        "default/iris runs on docker" in elsewhere.err,
        "delete it there first" in elsewhere.err,
    ) == (
        3,
        True,
        False,
    )
    assert "add --target docker" in elsewhere.err
    assert "generation 1 on docker: " in call("events", "iris", "--target", "docker").out
    platform.empty()


def test_hints_name_the_target(call: Call) -> None:
    assert "platformctl deploy -f service.yaml --target docker" in call("list", "--target", "docker").err
    for verb in ("status", "delete"):
        assert "platformctl list --target docker" in call(verb, "nobody", "--target", "docker").err


def test_a_canary_has_the_options_that_the_service_was_deployed_with(
    call: Call, platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "iris.yaml"
    file.write_text(serverless(uri=IRIS.as_uri()))
    where = ("-f", str(file), "--target", "docker", "--no-wait")
    done = call("deploy", *where, "--target-option", "network=host", "--target-option", "ulimits=memlock=-1")
    assert done.code == 0, done.err
    monkeypatch.setenv("DOCKER_HOST", "unix:///other")
    canary = ("canary", "start", "iris", *where, "--percent", "20", "--set", "metadata.annotations.a=b")
    for typed, limits in (((), "memlock=-1"), (("--target-option", "ulimits=nofile=9"), "nofile=9")):
        done = call(*canary, *typed, "--set", f"spec.predictor.containerConcurrency={len(limits)}")
        assert done.code == 0, done.err
        _, planned_with = read_release(platform.target.releases(("default", "iris"))[0])
        assert planned_with.target_options == {"network": "host", "ulimits": limits}
    platform.empty()
