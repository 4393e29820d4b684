"""A model that was trained elsewhere, told to the control API in one call; never with the value of a credential."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from tests.object_stores import S3_SECRET, moto, s3_bucket
from tests.platform.microservices.jobs.conftest import Ctl

from pilotlight.microservices.registry.database import OrgStore
from pilotlight.targets.local.home_directory import Home


@pytest.fixture
def ctl(alone: Ctl) -> Ctl:
    return alone


def told(ctl: Ctl, *words: str) -> dict[str, str]:
    return dict(json.loads(ctl.do("register", "acme", *words, "-o", "json")))


def test_one_call_makes_workspace_experiment_and_a_finished_job(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--workspace", "s3://bucket/team", "--credential", "access_key=env:WORKSPACE_ACME__KEY")
    made = told(ctl, "--network-arch", "classification", "--artifact", "runs/1/model.onnx", *words)
    store = OrgStore.open(Home(tmp_path / "home"))
    try:
        job = store.job("acme", made["job_id"])
        assert (job.kind, job.status, job.artifact) == ("train", "done", "runs/1/model.onnx")
        assert store.experiment("acme", made["experiment_id"]).workspace == made["workspace"]
        stored = store.workspace("acme", made["workspace"]).storage
        assert stored.credentials == {"access_key": "env:WORKSPACE_ACME__KEY"}
    finally:
        store.close()


def test_another_job_joins_an_experiment_that_is_there(ctl: Ctl, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).touch()
    first = told(ctl, "--network-arch", "classification", "--artifact", f"{tmp_path}/a.onnx", "--job", "train-1")
    second = told(ctl, "--experiment", first["experiment_id"], "--artifact", f"{tmp_path}/b.onnx")
    assert first["job_id"] == "train-1"
    assert first["experiment_id"] == second["experiment_id"]


def test_what_is_wrong_is_named_and_no_value_is_repeated(ctl: Ctl) -> None:
    value = "AKIA0123456789SECRET"
    words = ("--network-arch", "classification", "--artifact", "a.onnx", "--workspace", "s3://b/c")
    refused = ctl.run("register", "acme", *words, "--credential", f"access_key={value}")
    assert refused.returncode == 2
    assert "env:NAME or file:NAME" in refused.stderr
    assert value not in refused.stderr
    assert ctl.run("register", "acme", "--artifact", "/m").returncode == 2
    unknown = ctl.run("register", "acme", "--network-arch", "nothing-known", "--artifact", "/m", "--force")
    assert unknown.returncode == 2
    assert "network_arch = nothing-known" in unknown.stderr


def test_an_artifact_that_is_not_there_is_refused_and_nothing_is_made(ctl: Ctl, tmp_path: Path) -> None:
    words = ("--network-arch", "classification", "--artifact", str(tmp_path / "none.onnx"))
    refused = ctl.run("register", "acme", *words)
    assert (refused.returncode, f"nothing is at {tmp_path}/none.onnx" in refused.stderr) == (2, True)
    assert "--force" in refused.stderr
    with closing(OrgStore.open(Home(tmp_path / "home"))) as store:
        assert not store.experiments("acme", "")
    assert told(ctl, *words, "--force")["job_id"]


def test_an_object_that_is_not_there_is_refused_by_its_store(ctl: Ctl) -> None:
    access = {"WORKSPACE_ACME__ID": "testing", "WORKSPACE_ACME__SECRET": S3_SECRET}
    open_here = {"PILOTLIGHT_MEDIA_NETWORKS": "127.0.0.0/8", "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true"}
    references = ("access_key=env:WORKSPACE_ACME__ID", "secret_key=env:WORKSPACE_ACME__SECRET")
    with moto() as endpoint:
        bucket = s3_bucket(endpoint, "models")
        bucket.put("runs/1/model.onnx", b"weights")
        storage = ("--workspace", "s3://models/runs", "--endpoint", endpoint)
        words = (
            "--network-arch",
            "classification",
            *storage,
            "--credential",
            references[0],
            "--credential",
            references[1],
        )
        for artifact in ("1", "1/model.onnx", "s3://models/runs/1"):
            done = ctl.run("register", "acme", *words, "--artifact", artifact, **access, **open_here)
            assert (done.returncode, "was not checked" in done.stderr) == (0, False), done.stderr
        refused = ctl.run("register", "acme", *words, "--artifact", "2", **access, **open_here)
        assert (refused.returncode, "nothing is at s3://models/runs/2" in refused.stderr) == (2, True)
        unset = ctl.run("register", "acme", *words, "--artifact", "2", **open_here)  # the API may have them
        assert (unset.returncode, "env:WORKSPACE_ACME__ID is not set" in unset.stderr) == (0, True)


def test_a_network_of_ones_own_is_registered_by_its_kind(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    own = ("--network-arch", "mycls", "--artifact", str(tmp_path / "model"))
    assert ctl.run("register", "acme", *own).returncode == 2
    named = told(ctl, *own, "--kind", "detection")
    (tmp_path / "model" / "parameters.yaml").write_text("kind: classification\n")
    declared = told(ctl, *own)
    (tmp_path / "archs").mkdir()
    (tmp_path / "archs" / "mynet.config.json").write_text('{"container_command": "pilotlight"}')
    archs = {"PILOTLIGHT_ARCHS": str(tmp_path / "archs")}
    words = ("--network-arch", "mynet", "--artifact", str(tmp_path), "-o", "json")
    configured = json.loads(ctl.do("register", "acme", *words, **archs))
    with closing(OrgStore.open(Home(tmp_path / "home"))) as store:
        kinds = [store.experiment("acme", each["experiment_id"]).kind for each in (named, declared, configured)]
    assert kinds == ["detection", "classification", "pilotlight"]
