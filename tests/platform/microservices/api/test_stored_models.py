"""Models in a bucket over REST: their parameters.yaml, credentials and folders set meanwhile, and what they wrote."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import object_stores
from tests.embedded import ROOT
from tests.object_stores import S3_SECRET, Bucket
from tests.onnx_models import write_model
from tests.platform.microservices.api.conftest import ORG, Api
from tests.platform.microservices.api.test_batches import NODES
from tests.platform.microservices.batch.conftest import COLOURS, DECLARED, picture

# Writes what it may not, as code of others does.
TALKS = """
import os
INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1, 1])}
for line in ("first", os.environ["AWS_SECRET_ACCESS_KEY"], os.getcwd() + "/run", "last"):
    print(line, flush=True)
raise RuntimeError("no weights")
"""
SECRET = "a-secret-of-a-file"


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Bucket]]:
    with object_stores.moto() as endpoint:
        yield endpoint, object_stores.s3_bucket(endpoint, "models")


def set_credential(api: Api, name: str, value: str, org: str = ORG) -> str:
    """Its reference. The value is no argument, which other users could see."""
    done = subprocess.run(
        [sys.executable, "-m", "platformctl", "api", "credential", "set", org, name],
        env=api.platform.env, cwd=ROOT, input=value, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def registered(api: Api, endpoint: str, network_arch: str, artifact: str, token: str, **experiment: str) -> str:
    """Where jobs of the experiment are; its training is called as its experiment is."""
    access = {"access_key": set_credential(api, "id", "testing"), "secret_key": set_credential(api, "secret", SECRET)}
    storage = {"uri": "s3://models", "endpoint": endpoint, "credentials": access}
    workspace = api.ok("POST", f"/orgs/{ORG}/workspaces", storage, token=token)["id"]
    body = {"network_arch": network_arch, "workspace": workspace, **experiment}
    made = api.ok("POST", f"/orgs/{ORG}/experiments", body, token=token)["id"]
    api.ok("POST", f"/orgs/{ORG}/experiments/{made}/jobs", {"artifact": artifact, "id": made}, token=token)
    return str(made)


@pytest.fixture
def colours(store: tuple[str, Bucket], tmp_path: Path) -> str:
    """The artifact of a classifier of a network of one's own, with its labels."""
    shapes = {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))}
    folder = write_model(tmp_path, "model", NODES, *shapes)
    for file in folder.rglob("*.onnx"):
        store[1].put(f"colours/{file.relative_to(folder)}", file.read_bytes())
    store[1].put("colours/parameters.yaml", DECLARED.encode())
    return "colours"


def test_labels_and_kind_of_a_model_in_a_bucket_are_heeded(
    api: Api, store: tuple[str, Bucket], colours: str, tmp_path: Path
) -> None:
    refused = api.ask("POST", f"/orgs/{ORG}/experiments", {"network_arch": "my-colours"})
    assert (refused.status, "set its `kind`" in refused.json()["error"]) == (400, True)
    experiment = registered(api, store[0], "my-colours", colours, api.token, kind="classification")
    at = api.microservice(experiment, api.start(experiment, experiment))
    api.wait_loaded(at)
    (tmp_path / "red.png").write_bytes(picture("red"))
    body = {"images": str(tmp_path / "red.png")}
    assert "PILOTLIGHT_MEDIA_ROOTS" in api.ask("POST", f"{at}/inference", body).json()["error"]
    before = api.platform.env["PILOTLIGHT_MEDIA_ROOTS"]
    api.ctl("api", "setting", "set", f"PILOTLIGHT_MEDIA_ROOTS={before},{tmp_path}")
    try:
        assert api.ok("POST", f"{at}/inference", body)["results"]["response"] == "red"
        store[1].delete("colours/parameters.yaml")  # it was read with the model, and its store is not asked again
        assert api.ok("POST", f"{at}/inference", body)["results"]["response"] == "red"
    finally:
        api.ctl("api", "setting", "set", "PILOTLIGHT_MEDIA_ROOTS")
    assert "PILOTLIGHT_MEDIA_ROOTS" in api.ask("POST", f"{at}/inference", body).json()["error"]
    api.ok("POST", f"{at}/stop")


def test_a_batch_of_a_model_in_a_bucket_is_scored_by_its_labels(
    api: Api, store: tuple[str, Bucket], colours: str
) -> None:
    for colour in COLOURS:
        store[1].put(f"in/{colour}.png", picture(colour))
    store[1].put("labels.csv", "\n".join(["file,label", *(f"{each}.png,{each}" for each in COLOURS)]).encode())
    experiment = registered(api, store[0], "my-colours", colours, api.token, kind="classification")
    body = {"parent_id": experiment, "inputs": "in", "outputs": "out", "labels": "labels.csv"}
    job = api.ok("POST", f"/orgs/{ORG}/experiments/{experiment}/batch_inference/start", body)["job_id"]
    at = f"/orgs/{ORG}/experiments/{experiment}/jobs/{job}/batch_inference/status"
    api.wait(lambda: api.ok("GET", at)["status"] in ("done", "failed"), "the job to end")
    assert api.ok("GET", at)["metrics"]["accuracy"] == 1.0, api.ok("GET", at)


def test_an_org_reads_its_own_log_without_secrets(api: Api, store: tuple[str, Bucket]) -> None:
    store[1].put("talks/1/model.py", TALKS.encode())
    experiment = registered(api, store[0], "pilotlight", "talks", api.admin)  # it has code
    at = api.microservice(experiment, api.start(experiment, experiment))
    api.wait(lambda: api.ok("GET", f"{at}/status")["status"] == "error", "the load to fail")
    lines = api.ok("GET", f"{at}/logs")["lines"]
    written = "\n".join(lines)
    assert "first" in lines
    assert "last" in lines
    assert "<AWS_SECRET_ACCESS_KEY>" in lines
    assert "<PILOTLIGHT_HOME>/run" in lines
    for hidden in (SECRET, S3_SECRET, str(api.platform.home.root), api.admin):
        assert hidden not in written
    assert api.ok("GET", f"{at}/logs?tail=2")["lines"] == lines[-2:]
    for tail in ("0", "51", "-1", "x", "9" * 5000):
        reply = api.ask("GET", f"{at}/logs?tail={tail}")
        assert (reply.status, "must be a whole number from 1 to 50" in reply.json()["error"]) == (400, True)
    key = api.ctl("api", "key", "create", "other")
    other = str(api.login(key, "other").json()["token"])
    assert api.ask("GET", f"{at}/logs", token=other).status == 404
    assert api.ask("GET", f"{at}/logs", token="").status == 401
    moved = at.replace(f"/orgs/{ORG}/", "/orgs/other/")
    assert api.ask("GET", f"{moved}/logs", token=other).status == 404
    api.ok("POST", f"{at}/stop")
    assert api.ask("GET", f"{at}/logs").status == 404


def test_only_settings_that_are_read_at_each_use_can_be_set(api: Api) -> None:
    for assignment, told in (
        ("PATH=/tmp", "is no setting that can change"),
        ("PILOTLIGHT_MEDIA_NETWORKS=nowhere", "write networks as"),
        ("PILOTLIGHT_MEDIA_MAX_FILES=-1", "must be a whole number"),
        ("PILOTLIGHT_API_MAX_RECORDS=many", "must be a number"),
        ("PILOTLIGHT_MEDIA_ROOTS=/a\nPATH=/b", "control character"),
    ):
        command = [sys.executable, "-m", "platformctl", "api", "setting", "set", assignment]
        done = subprocess.run(command, env=api.platform.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, told in done.stderr) in {(2, True), (1, True)}, done.stderr
    assert api.ctl("api", "setting", "list", "-o", "json") == "{}"
