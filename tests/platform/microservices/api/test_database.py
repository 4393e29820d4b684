"""Workspaces, experiments and jobs: kept by REST, and the parents that a microservice may be started from."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.platform.microservices.api.conftest import ORG, Api

from pilotlight.errors import Conflict, NotFound, UsageError
from pilotlight.microservices.jobs import org_resources
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Experiment, JobRecord, Workspace, check_org
from pilotlight.targets.local.home_directory import Home

EXPERIMENTS = f"/orgs/{ORG}/experiments"
WORKSPACES = f"/orgs/{ORG}/workspaces"
BUCKET = {"uri": "s3://models/acme", "credentials": {"access_key": "env:WORKSPACE_ACME__ID"}}


def refused(api: Api, status: int, method: str, path: str, body: Any = None, token: str | None = None) -> str:
    reply = api.ask(method, path, body, token=token)
    assert reply.status == status, reply.body
    return str(reply.json()["error"])


def test_a_workspace_is_kept_found_and_deleted(api: Api) -> None:
    made = api.ok("POST", WORKSPACES, {**BUCKET, "name": "models", "endpoint": "https://s3.example"})
    assert made["storage"]["uri"] == BUCKET["uri"]
    assert api.ok("GET", f"{WORKSPACES}/{made['id']}") == made
    assert made in api.ok("GET", WORKSPACES)["workspaces"]
    experiment = api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight", "workspace": made["id"]})["id"]
    assert "is used by experiment" in refused(api, 409, "DELETE", f"{WORKSPACES}/{made['id']}")
    api.ok("DELETE", f"{EXPERIMENTS}/{experiment}")
    api.ok("DELETE", f"{WORKSPACES}/{made['id']}")
    assert refused(api, 404, "GET", f"{WORKSPACES}/{made['id']}") == f"org {ORG} has no workspace {made['id']}"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "uri"),
        ({"uri": "ftp://x"}, "uri = ftp://x, must begin with"),
        ({"uri": "https://user:word@host/x"}, "a user or a password"),
        ({"uri": "s3://b", "credentials": {"access_key": "AKIAVALUE"}}, "credentials.access_key must be env:NAME"),
        ({"uri": "s3://b", "credentials": {"password": "env:WORKSPACE_ACME__X"}}, "credentials.password is unknown"),
        ({"uri": "s3://b", "credentials": {"access_key": "env:PATH"}}, "credentials.access_key must be"),
        ({"uri": "s3://b", "credentials": {"access_key": "env:AWS_ACCESS_KEY_ID"}}, "WORKSPACE_ACME__NAME"),
        ({"uri": "s3://b", "credentials": {"access_key": "env:WORKSPACE_ACME_B__ID"}}, "WORKSPACE_ACME__NAME"),
        ({"uri": "s3://b", "credentials": {"access_key": "file:other/key"}}, "file:acme/NAME"),
        ({"uri": "s3://b", "credentials": {"access_key": "file:acme2.key"}}, "file:acme.NAME"),
        ({"uri": "file:///etc"}, "a folder that the operator allows"),
        ({"uri": "/etc"}, "a folder that the operator allows"),
        ({"uri": "s3://b", "colour": "red"}, "colour"),
        ({"uri": "s3://b", "endpoint": "http://169.254.169.254"}, "169.254.169.254 is private, local or reserved"),
        ({"uri": "s3://b", "endpoint": "https://[::ffff:10.0.0.5]"}, "is private, local or reserved"),
        ({"uri": "s3://b", "endpoint": "ftp://store"}, "endpoint = ftp://store is not an address"),
        ({"uri": "https://10.0.0.5/models"}, "uri = https://10.0.0.5/models: 10.0.0.5 is private"),
        ({"uri": "s3://b#x/models"}, "must be s3://bucket"),
        ({"uri": "s3://b", "region": "evil.example/"}, "must be the name of a region"),
        ({"uri": "az://b", "account": "169.254.169.254/"}, "account = '169.254.169.254/', must be 3 to 24"),
    ],
)
def test_a_workspace_that_an_org_may_not_have_is_refused_by_its_field(api: Api, body: Any, told: str) -> None:
    assert told in refused(api, 400, "POST", WORKSPACES, body)


def test_the_operator_may_name_folders_and_variables_that_an_org_may_not(api: Api, tmp_path: Path) -> None:
    body = {"uri": str(tmp_path), "credentials": {"access_key": "env:AWS_ACCESS_KEY_ID"}}
    made = api.ok("POST", WORKSPACES, body, token=api.admin)
    api.ok("DELETE", f"{WORKSPACES}/{made['id']}")


def test_a_folder_that_was_opened_is_taken_and_a_link_out_of_it_is_not(api: Api) -> None:
    root = Path(api.platform.env["PILOTLIGHT_WORKSPACE_ROOTS"]) / ORG
    (root / "inside").mkdir(parents=True)
    (root / "outside").symlink_to("/etc")
    api.ok("POST", WORKSPACES, {"uri": str(root / "inside")})
    assert "allows for" in refused(api, 400, "POST", WORKSPACES, {"uri": str(root / "outside")})


def test_neither_anothers_folder_nor_one_of_media_becomes_a_workspace(api: Api) -> None:
    """Batch jobs write into workspaces."""
    roots = [api.platform.env[f"PILOTLIGHT_{name}_ROOTS"] for name in ("WORKSPACE", "MEDIA")]
    for folder in (*roots, f"{roots[0]}/other", f"{roots[0]}/{ORG}-b", f"{roots[0]}/{ORG}/../other"):
        assert "allows for acme" in refused(api, 400, "POST", WORKSPACES, {"uri": folder})


def test_an_experiment_is_of_a_known_network_and_workspace(api: Api) -> None:
    assert "its kind of model is unknown" in refused(api, 400, "POST", EXPERIMENTS, {"network_arch": "resnet9000"})
    body = {"network_arch": "pilotlight", "workspace": "nowhere"}
    assert f"org {ORG} has no workspace nowhere" in refused(api, 404, "POST", EXPERIMENTS, body)
    made = api.ok("POST", EXPERIMENTS, {"network_arch": "classification_pyt", "name": "dogs", "id": "dogs-1"})
    assert (made["id"], made["org"], made["network_arch"]) == ("dogs-1", ORG, "classification_pyt")
    assert "used once" in refused(api, 409, "POST", EXPERIMENTS, {"network_arch": "text", "id": "dogs-1"})
    assert "must be letters" in refused(api, 400, "POST", EXPERIMENTS, {"network_arch": "text", "id": "../x"})


@pytest.fixture
def bucket(api: Api) -> str:
    """An experiment whose workspace is a bucket."""
    workspace = api.ok("POST", WORKSPACES, BUCKET)["id"]
    return str(api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight", "workspace": workspace})["id"])


@pytest.mark.parametrize(
    ("artifact", "told"),
    [
        ("", "artifact is missing"),
        ("../secret/model.onnx", "must not have .. in it"),
        ("s3://elsewhere/model.onnx", "must lie in the workspace"),
        ("s3://models/acmeother/model.onnx", "must lie in the workspace"),
        ("/etc/passwd", "must lie in the workspace"),
        ("s3://models/acme/../x", "must lie in the workspace"),
    ],
)
def test_an_artifact_lies_in_the_workspace(api: Api, bucket: str, artifact: str, told: str) -> None:
    assert told in refused(api, 400, "POST", f"{EXPERIMENTS}/{bucket}/jobs", {"artifact": artifact})


def test_a_job_goes_from_running_to_done(api: Api, bucket: str) -> None:
    jobs = f"{EXPERIMENTS}/{bucket}/jobs"
    made = api.ok("POST", jobs, {"status": "running"})
    at = f"{jobs}/{made['id']}"
    assert "artifact is missing" in refused(api, 400, "PATCH", at, {"status": "done"})
    done = api.ok("PATCH", at, {"status": "done", "artifact": "run1/model.onnx"})
    assert (done["status"], done["artifact"]) == ("done", "run1/model.onnx")
    assert api.ok("GET", jobs)["jobs"] == [done]
    api.ok("DELETE", at)
    assert "used once" in refused(api, 409, "POST", jobs, {"artifact": "run1/model.onnx", "id": made["id"]})


@pytest.mark.parametrize("kind", ["inference_microservice", "batch"])
def test_jobs_that_we_run_are_not_made_by_hand(api: Api, bucket: str, kind: str) -> None:
    body = {"kind": kind, "artifact": "x"}
    assert "are created by starting them" in refused(api, 400, "POST", f"{EXPERIMENTS}/{bucket}/jobs", body)


def test_a_parent_must_be_a_finished_training_of_this_experiment(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    start = f"{EXPERIMENTS}/{experiment}/inference_microservice/start"
    assert refused(api, 404, "POST", start, {"parent_id": "nobody"}) == f"parent_id = nobody: org {ORG} has no such job"
    assert "parent_id" in refused(api, 400, "POST", start, {})
    running = api.ok("POST", f"{EXPERIMENTS}/{experiment}/jobs", {"status": "running"})["id"]
    assert "is running, must be done" in refused(api, 409, "POST", start, {"parent_id": running})
    elsewhere = api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight"})["id"]
    start = f"{EXPERIMENTS}/{elsewhere}/inference_microservice/start"
    assert f"is a job of experiment {experiment}" in refused(api, 400, "POST", start, {"parent_id": parent})
    assert refused(api, 404, "POST", f"{EXPERIMENTS}/nowhere/inference_microservice/start", {"parent_id": parent})


def test_another_orgs_parent_is_as_if_it_were_not_there(api: Api, iris: tuple[str, str], tmp_path: Path) -> None:
    _, foreign = api.train(tmp_path / "model.onnx", org="rival")
    start = f"{EXPERIMENTS}/{iris[0]}/inference_microservice/start"
    told = refused(api, 404, "POST", start, {"parent_id": foreign})
    assert told == f"parent_id = {foreign}: org {ORG} has no such job"


def test_credentials_reach_the_microservice_under_the_names_its_storage_reads() -> None:
    bucket = Workspace("s3://b/x", "http://store", "eu-1", "", {"access_key": "env:WORKSPACE_A__I"})
    found = org_resources.access(bucket, {"WORKSPACE_A__I": "id"})
    assert found.secret == {"AWS_ACCESS_KEY_ID": "id"}
    assert found.plain == {"AWS_REGION": "eu-1", "AWS_ENDPOINT_URL": "http://store"}
    with pytest.raises(UsageError, match="env:WORKSPACE_A__I is not set"):
        org_resources.access(bucket, {})
    assert org_resources.access(Workspace("s3://b"), {}).plain["AWS_SKIP_SIGNATURE"] == "true"
    blobs = Workspace("az://c", account="acc", credentials={"sas_token": "env:WORKSPACE_A__S"})
    found = org_resources.access(blobs, {"WORKSPACE_A__S": "sig"})
    assert (found.secret, found.plain) == (
        {"AZURE_STORAGE_SAS_TOKEN": "sig"}, {"AZURE_STORAGE_ACCOUNT_NAME": "acc"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ("s3://b/m", {"AWS_ENDPOINT_URL": "https://store.example"}),
        ("az://b/m", {"AZURE_STORAGE_ENDPOINT": "https://store.example"}),
        ("https://store.example/m", {}),
    ],
)
def test_a_store_whose_name_leads_to_a_private_address_is_refused_at_the_start(
    model: str, plain: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=r"the model's storage https://store.example\S* could not be fetched"):
        org_resources.check_stores(model, plain, Limits(), resolver=lambda host, port: ["192.0.2.1", "10.0.0.5"])
    org_resources.check_stores(model, plain, Limits(), resolver=lambda host, port: ["8.8.8.8"])
    org_resources.check_stores(model, plain, Limits(networks=("10.0.0.0/8",)), resolver=lambda host, port: ["10.0.0.5"])


def test_a_model_in_a_private_store_is_not_started(api: Api) -> None:
    """The name says nothing before it is resolved."""
    body = {"uri": "s3://b", "endpoint": "https://0xa000005"}
    workspace = api.ok("POST", WORKSPACES, body)["id"]
    experiment = api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight", "workspace": workspace})["id"]
    parent = api.ok("POST", f"{EXPERIMENTS}/{experiment}/jobs", {"artifact": "m.onnx"})["id"]
    at = f"{EXPERIMENTS}/{experiment}/jobs/{api.start(experiment, parent)}"
    api.wait(lambda: api.ok("GET", at)["status"] == "error", "the start to be refused")
    assert "the model's storage https://0xa000005 could not be fetched" in api.ok("GET", at)["message"]


def test_no_org_may_name_the_variables_of_another() -> None:
    names = ["a", "a-b", "a-b-c", "ab", "a1", "b", "a-1"]
    for one, other in ((one, other) for one in names for other in names if one != other):
        stolen = Workspace("s3://b", credentials={"secret_key": f"env:{org_resources.variable_prefix(other)}SECRET"})
        with pytest.raises(UsageError, match=r"credentials\.secret_key must be"):
            org_resources.check(one, stolen, Limits(), trusted=False)


@pytest.mark.parametrize("org", ["a--b", "-a", "a-", "", "a" * 64, "a_b", "a\n", "A"])
def test_a_name_whose_variables_could_be_anothers_is_no_org(org: str) -> None:
    with pytest.raises(UsageError, match="single hyphens"):
        check_org(org)
    assert check_org("a-b-" + "c" * 59)


def test_lists_come_in_pages_that_go_on_after_a_record(tmp_path: Path) -> None:
    with closing(OrgStore.open(Home(tmp_path))) as store:
        for org in ("a", "b"):
            store.add_experiment(Experiment("e", org, "pilotlight", "", "", ""))
            for number in range(130):
                store.add_job(JobRecord(str(number), org, "e", "train", "done", "", ""))
        first = store.jobs("a", "e")
        assert [each.id for each in first] == [str(number) for number in range(100)]
        store.delete_job("a", "42")
        assert [each.id for each in store.jobs("a", "e", "99")] == [str(number) for number in range(100, 130)]
        assert store.jobs("a", "e", "129") == []
        with pytest.raises(NotFound, match="after = 42: org a has no such job any more"):
            store.jobs("a", "e", "42")


def test_an_org_has_so_many_records_of_a_kind_and_other_orgs_theirs(tmp_path: Path) -> None:
    with closing(OrgStore.open(Home(tmp_path))) as store:
        for org in ("a", "b"):
            store.add_experiment(Experiment("e", org, "pilotlight", "", "", ""), most=1)
        with pytest.raises(Conflict, match="org a has 1 experiments, its limit"):
            store.add_experiment(Experiment("f", "a", "pilotlight", "", "", ""), most=1)
        store.add_job(JobRecord("1", "a", "e", "train", "done", "", ""), most=1)
        store.add_job(JobRecord("2", "a", "e", "batch", "done", "", ""), most=1)
        with pytest.raises(Conflict, match="org a has 1 jobs of the kind train"):
            store.add_job(JobRecord("3", "a", "e", "train", "done", "", ""), most=1)
        store.delete_job("a", "1")
        store.add_job(JobRecord("3", "a", "e", "train", "done", "", ""), most=1)


def test_bodies_and_names_are_bounded_and_text(api: Api) -> None:
    assert "length <= 253" in refused(api, 400, "POST", WORKSPACES, {**BUCKET, "name": "a" * 254})
    refused(api, 413, "POST", WORKSPACES, {**BUCKET, "name": "a" * 2**20})
    refused(api, 400, "POST", WORKSPACES, b'{"uri": "s3://b/p", "name": "\xff"}')


def test_an_org_that_changes_a_model_of_the_operator_makes_it_its_own(api: Api) -> None:
    experiment = api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight"})["id"]
    jobs = f"{EXPERIMENTS}/{experiment}/jobs"
    job = api.ok("POST", jobs, {"artifact": "/models/m"}, token=api.admin)
    assert job["by_operator"]
    assert api.ok("PATCH", f"{jobs}/{job['id']}", {"status": "done"})["by_operator"]
    assert "must lie in the workspace" in refused(api, 400, "PATCH", f"{jobs}/{job['id']}", {"artifact": "/models/n"})
    workspace = api.ok("POST", WORKSPACES, BUCKET)["id"]
    experiment = api.ok("POST", EXPERIMENTS, {"network_arch": "pilotlight", "workspace": workspace})["id"]
    jobs = f"{EXPERIMENTS}/{experiment}/jobs"
    job = api.ok("POST", jobs, {"artifact": "/models/m"}, token=api.admin)
    assert not api.ok("PATCH", f"{jobs}/{job['id']}", {"artifact": "m"})["by_operator"]
