"""Whose models may run code as processes of this machine, and what is refused of the others."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs import launcher
from pilotlight.microservices.jobs.model_isolation import check_model, check_name, is_operators, org_isolation
from pilotlight.microservices.jobs.org_resources import locate_model
from pilotlight.microservices.jobs.start_request import PlatformSettings, model_of
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.records import PLATFORMS, JobRecord, StoredWorkspace, Workspace

ALLOWED = {"PILOTLIGHT_API_ALLOW_CODE": "lab, other"}
RECORD = JobRecord("j", "evil", "e", "train", "done", "", "", by_operator=True)


@pytest.mark.parametrize(
    ("org", "platform", "isolation"),
    [
        ("lab", "local", "sandbox"),
        ("other", "local", "sandbox"),
        ("evil", "local", "data"),
        ("evil", "docker", "container"),
    ],
)
def test_an_orgs_models_have_no_code_or_a_sandbox(org: str, platform: str, isolation: str) -> None:
    assert org_isolation(org, platform, {}, ALLOWED) == isolation
    assert org_isolation(org, platform, {}, {}) in ("data", "container")


@pytest.mark.parametrize("container", ["", "none", "apptainer", "singularity"])
def test_no_model_of_an_org_is_a_process_of_the_operator_on_slurm(container: str) -> None:
    settings = PlatformSettings("slurm", ALLOWED, {"container": container} if container else {})
    record = replace(RECORD, org="lab", artifact="hf_model://a/b")
    model, isolation = model_of(settings, replace(record, by_operator=False), None)
    with pytest.raises(UsageError, match="container is not pyxis or enroot: the job of a model of org lab") as refused:
        check_model("lab", model, isolation)
    assert "PILOTLIGHT_API_OPTION_CONTAINER" in refused.value.hint
    check_model("lab", "/m", org_isolation("lab", "slurm", {"container": "pyxis"}, {}))
    check_model("lab", *model_of(settings, record, None))


def test_a_model_is_the_operators_where_he_named_it_and_the_org_cannot_write_to_it(tmp_path: Path) -> None:
    limits = Limits(workspaces=(str(tmp_path),))
    bucket = StoredWorkspace("w", "evil", "", Workspace("s3://b/team"), "")
    assert is_operators(RECORD, None, "/models/m", limits)
    assert is_operators(RECORD, None, "hf_model://org/model", limits)
    assert is_operators(RECORD, replace(bucket, by_operator=True), "s3://b/team/m", limits)
    assert is_operators(RECORD, bucket, "s3://b/team2/m", limits)
    assert not is_operators(RECORD, bucket, "s3://b/team/m", limits)
    assert not is_operators(RECORD, None, str(tmp_path / "evil/m"), limits)
    assert not is_operators(replace(RECORD, by_operator=False), None, "/models/m", limits)


@pytest.mark.parametrize("file", ["1/model.py", "model.pt", "weights.pth", "deep/er/x.pkl", "aot/model.so", "m.pt2"])
def test_a_model_with_code_is_refused_by_its_files(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(UsageError, match="can run code, which is not allowed for org evil") as refused:
        check_model("evil", str(tmp_path), "data")
    assert refused.value.hint.endswith("PILOTLIGHT_API_ALLOW_CODE=evil")
    check_model("evil", str(tmp_path), "sandbox")
    check_model("evil", str(tmp_path), "")


def test_data_is_not_refused_nor_is_what_the_predictor_checks_itself(tmp_path: Path) -> None:
    for name in ("model.onnx", "config.json", "model.safetensors", "parameters.yaml"):
        (tmp_path / name).touch()
    check_model("evil", str(tmp_path), "data")
    check_model("evil", "s3://bucket/model", "data")
    with pytest.raises(UsageError, match="hf_model://a/b can run code"):
        check_name("evil", "hf_model://a/b", "data")


def test_a_link_out_of_the_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "m/model.onnx").symlink_to(tmp_path / "theirs/model.onnx")
    with pytest.raises(UsageError, match="is a link out of the model's folder"):
        check_model("evil", str(tmp_path / "m"), "data")
    (tmp_path / "m/model.onnx").unlink()
    (tmp_path / "m/1").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="is a link out of the model's folder"):
        check_model("evil", str(tmp_path / "m"), "data")


def test_an_artifact_is_found_without_links_within_the_folders_of_its_org(tmp_path: Path) -> None:
    limits = Limits(workspaces=(str(tmp_path),))
    for folder in ("evil/m", "acme/m"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "evil/out").symlink_to(tmp_path / "acme")
    (tmp_path / "evil/in").symlink_to(tmp_path / "evil/m")
    own = StoredWorkspace("w", "evil", "", Workspace(str(tmp_path / "evil")), "")
    assert locate_model("evil", own, "in", limits, False) == str(tmp_path / "evil/m")
    for workspace in (own, replace(own, by_operator=True)):
        with pytest.raises(UsageError, match="is outside of the workspace"):
            locate_model("evil", workspace, "out/m", limits, False)
    assert locate_model("evil", own, "out/m", limits, True) == str(tmp_path / "evil/out/m")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_secrets_of_the_operator_are_not_for_an_orgs_model(platform: str) -> None:
    environ = {"HF_TOKEN": "operators", "AWS_SESSION_TOKEN": "orgs"}
    request = launcher.StartRequest("pilotlight", "/m", platform, secrets=("AWS_SESSION_TOKEN",), remote=True)
    assert launcher.build_job(request, environ).secrets == ("HF_TOKEN", "AWS_SESSION_TOKEN")
    isolation = org_isolation("evil", platform, {"container": "pyxis"}, {})
    if platform == "lepton":
        with pytest.raises(UsageError, match="AWS_SESSION_TOKEN of an org would use the Lepton workspace's own secret"):
            launcher.build_job(replace(request, isolation=isolation), environ)
        return
    job = launcher.build_job(replace(request, isolation=isolation), environ)
    assert job.secrets == ("AWS_SESSION_TOKEN",)
    assert job.isolation == ("data" if platform == "local" else ""), "other targets refuse the annotation"
