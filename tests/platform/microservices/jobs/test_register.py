"""A model that was trained elsewhere, told to the control API in one call; never with the value of a credential."""

import json
from pathlib import Path

from tests.platform.microservices.jobs.conftest import Ctl

from pilotlight.microservices.registry.database import OrgStore
from pilotlight.targets.local.home_directory import Home


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


def test_another_job_joins_an_experiment_that_is_there(ctl: Ctl) -> None:
    first = told(ctl, "--network-arch", "classification", "--artifact", "/models/a.onnx", "--job", "train-1")
    second = told(ctl, "--experiment", first["experiment_id"], "--artifact", "/models/b.onnx")
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
    unknown = ctl.run("register", "acme", "--network-arch", "nothing-known", "--artifact", "/m")
    assert unknown.returncode == 2
    assert "network_arch = nothing-known" in unknown.stderr
