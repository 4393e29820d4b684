"""Keys of orgs against the control API of one machine: code, links to others' folders, floods of records.

Orgs do not trust each other: `evil` is the attacker, `acme` the victim, and `lab` may run code in a sandbox.
"""

import json
import os
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.embedded import FLOWER, IRIS, Platform
from tests.eventually import eventually
from tests.http_reply import Reply

from pilotlight.microservices.registry.api_keys import create, issue
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.targets.local.supervisor.isolation import sandbox

pytestmark = pytest.mark.security
MOST = 110
SPY = """
import os

INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}
FOUND = []
for act in (
    lambda: open("HOME/token").read(), lambda: os.listdir("HOME"), lambda: os.listdir("OTHER"),
    lambda: open("MARK", "w").write("ran"),
):
    try:
        FOUND.append(act())
    except OSError:
        pass


class Model:
    def execute(self, inputs):
        import numpy

        return {"y": numpy.array([len(FOUND), os.getuid()], dtype=numpy.float32)}
"""


class Attack:
    def __init__(self, platform: Platform, roots: Path) -> None:
        self.platform, self.roots = platform, roots
        self.home = platform.home.root
        store = OrgStore.open(platform.home)
        keys = {org: create(store, org, 0.0, None)[1].id for org in ("evil", "acme", "lab")}
        self.tokens = {org: issue(store, org, key, 4e9)[0] for org, key in keys.items()}
        store.close()
        for org in keys:
            (roots / org).mkdir(parents=True)

    def ask(self, method: str, path: str, body: Any = None, org: str = "evil") -> Reply:
        connection = HTTPConnection("127.0.0.1", self.platform.address.port, timeout=60)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body)
            headers = {"Authorization": f"Bearer {self.tokens[org]}"}
            connection.request(method, f"/api/v1{path}", sent, headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, org: str = "evil") -> Any:
        reply = self.ask(method, path, body, org)
        assert reply.status in (200, 201), reply.body
        return reply.json()

    def refused(self, sentence: str, *request: Any, status: int = 400) -> None:
        reply = self.ask(*request)
        assert (reply.status, sentence in reply.json()["error"]) == (status, True), (reply.status, reply.body[:300])

    def experiment(self, org: str = "evil", folder: str = "") -> str:
        workspace = self.ok("POST", f"/orgs/{org}/workspaces", {"uri": str(self.roots / org / folder)}, org)["id"]
        body = {"network_arch": "pilotlight", "workspace": workspace}
        return f"/orgs/{org}/experiments/" + str(self.ok("POST", f"/orgs/{org}/experiments", body, org)["id"])

    def train(self, at: str, artifact: str, org: str = "evil") -> dict[str, str]:
        return {"parent_id": self.ok("POST", f"{at}/jobs", {"artifact": artifact}, org)["id"]}

    def spy(self, org: str) -> Path:
        """A model that reads and writes what it must not, when it is loaded; where it would leave its mark."""
        folder = self.roots / org / "spy"
        folder.mkdir(exist_ok=True)
        mark = self.roots / f"{org}-ran"
        code = SPY.replace("HOME", str(self.home)).replace("OTHER", str(self.roots / "acme"))
        (folder / "model.py").write_text(code.replace("MARK", str(mark)))
        return mark


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("orgs")
    env = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json"),
        "PILOTLIGHT_WORKSPACE_ROOTS": str(folder / "roots"),
        "PILOTLIGHT_API_ALLOW_CODE": "lab, other",
        "PILOTLIGHT_API_MAX_RECORDS": str(MOST),
        "PILOTLIGHT_PROMETHEUS": "",
    }
    with Platform(folder / "home", env) as platform:
        yield Attack(platform, folder / "roots")


def test_an_orgs_key_is_no_shell_on_the_host(attack: Attack) -> None:
    mark, at = attack.spy("evil"), attack.experiment()
    parent = attack.train(at, "spy")
    sentence = "can run code, which is not allowed for org evil on this machine"
    attack.refused(sentence, "POST", f"{at}/inference_microservice/start", parent)
    (attack.roots / "evil/in").mkdir()
    batch = {**parent, "inputs": "in", "outputs": "out"}
    attack.refused(sentence, "POST", f"{at}/batch_inference/start", batch)
    for artifact in ("hf_model://attacker/repo", "m.pt", "m.pt2", "m.pkl", "m/model.py"):
        attack.refused(sentence, "POST", f"{at}/jobs", {"artifact": artifact})
    assert not mark.exists()


def test_where_the_operator_allows_code_it_runs_in_a_sandbox(attack: Attack) -> None:
    if not sandbox.detect().kind:
        pytest.skip(f"neither root nor user namespaces: {sandbox.detect().reason}")
    mark, at = attack.spy("lab"), attack.experiment("lab")
    started = attack.ok("POST", f"{at}/inference_microservice/start", attack.train(at, "spy", "lab"), "lab")
    job = f"{at}/jobs/{started['job_id']}/inference_microservice"

    def loaded() -> bool:
        status = attack.ok("GET", f"{job}/status", org="lab")
        assert status["status"] != "error", status
        return bool(status["model_loaded"])

    eventually(loaded, lambda: f"the model\n{attack.platform.log()}", pause_s=0.1)
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    found, uid = attack.ok("POST", f"{job}/inference", body, "lab")["results"]["outputs"][0]["data"]
    assert found == 0
    assert uid != 0
    attack.ok("POST", f"{job}/stop", org="lab")
    assert not mark.exists()
    home = attack.platform.home
    assert [*os.listdir(home.copies), *os.listdir(home.sockets)] == []


def test_links_lead_to_no_other_orgs_folder(attack: Attack) -> None:
    acme, evil = attack.roots / "acme", attack.roots / "evil"
    for folder in (acme / "m", evil / "mine", evil / "linked", evil / "inputs"):
        folder.mkdir()
    (acme / "m/model.onnx").write_bytes(IRIS.read_bytes())
    (evil / "link").symlink_to(acme)
    at = attack.experiment()
    attack.refused("is outside of the workspace", "POST", f"{at}/jobs", {"artifact": "link/m"})
    attack.refused("that the operator allows for evil", "POST", "/orgs/evil/workspaces", {"uri": str(evil / "link")})
    (evil / "linked/model.onnx").symlink_to(acme / "m/model.onnx")
    start = f"{at}/inference_microservice/start"
    attack.refused("is a link out of the model's folder", "POST", start, attack.train(at, "linked"))
    later = attack.train(at, "mine")
    (evil / "mine").rmdir()
    (evil / "mine").symlink_to(acme / "m")  # after it was registered
    attack.refused("is outside of the workspace", "POST", start, later)
    batch = {**attack.train(at, "linked/none.onnx"), "inputs": "inputs", "outputs": "out"}
    for change in ({"inputs": "link/m"}, {"outputs": "link/out"}, {"labels": "link/labels.json"}):
        attack.refused("is outside of the workspace", "POST", f"{at}/batch_inference/start", {**batch, **change})
    whole = attack.experiment(folder="inputs")
    (evil / "inputs").rmdir()
    (evil / "inputs").symlink_to(acme)  # the workspace itself
    job = attack.ask("POST", f"{whole}/jobs", {"artifact": "m"})
    assert job.status == 400, job.body
    assert not (acme / "out").exists()


def test_one_org_does_not_fill_the_control_process(attack: Attack) -> None:
    path, space = "/orgs/evil/workspaces", {"uri": "s3://bucket/p"}
    assert attack.ask("POST", path, {**space, "name": "a" * 40_000_000}).status == 413
    attack.refused("length <= 253", "POST", path, {**space, "name": "a" * 254})
    attack.refused("length <= 4096", "POST", path, {"uri": "s3://bucket/" + "a" * 4096})
    statuses = [attack.ask("POST", path, {**space, "name": "a" * 253}).status for _ in range(MOST + 1)]
    assert set(statuses) == {201, 409}
    attack.refused("its limit", "POST", path, space, status=409)
    assert attack.ask("POST", "/orgs/acme/workspaces", space, "acme").status == 201  # others still may
    first = attack.ok("GET", path)
    rest = attack.ok("GET", f"{path}?after={first['next']}")
    assert (len(first["workspaces"]), len(rest["workspaces"])) == (100, MOST - 100)
    assert "next" not in rest
    assert not {each["id"] for each in first["workspaces"]} & {each["id"] for each in rest["workspaces"]}
    attack.refused("has no such workspace any more", "GET", f"{path}?after=gone", status=404)


def test_a_body_that_is_no_utf_8_is_the_clients_mistake(attack: Attack) -> None:
    for path in ("workspaces", "experiments"):
        reply = attack.ask("POST", f"/orgs/evil/{path}", b'{"name": "\xff", "uri": "s3://b/p"}')
        assert reply.status == 400, reply.body


@pytest.mark.parametrize(
    ("org", "status"),
    [("acme", 404), ("ACME", 404), ("Evil", 404), ("evil%2f..%2facme", 404), ("acme%00", 404), ("%65vil", 200)],
)
def test_a_token_opens_its_own_org_alone(attack: Attack, org: str, status: int) -> None:
    assert attack.ask("GET", f"/orgs/{org}/workspaces").status == status


def test_another_orgs_ids_are_unknown(attack: Attack) -> None:
    at = attack.experiment("acme")
    for path in (at, f"{at}/jobs"):
        other = path.replace("/acme/", "/evil/")
        assert (attack.ask("GET", path).status, attack.ask("GET", other).status) == (404, 404)


@pytest.mark.parametrize(
    "reference",
    ["env:PATH", "env:AWS_SECRET_ACCESS_KEY", "env:WORKSPACE_ACME__KEY", "file:../token", "file:/etc/shadow", "plain"],
)
def test_credentials_of_others_cannot_be_named(attack: Attack, reference: str) -> None:
    body = {"uri": "s3://b/p", "credentials": {"access_key": reference, "secret_key": reference}}
    assert attack.ask("POST", "/orgs/evil/workspaces", body).status == 400


def test_files_outside_of_the_workspace_cannot_be_named(attack: Attack) -> None:
    for uri in ("/", "/etc", str(attack.home), str(attack.roots), str(attack.roots / "acme"), "file:///etc"):
        assert attack.ask("POST", "/orgs/acme/workspaces", {"uri": uri}, "evil").status == 404
        assert attack.ask("POST", "/orgs/lab/workspaces", {"uri": uri}, "lab").status == 400
    at = attack.experiment("lab")
    for artifact in ("../acme/m", "/etc/passwd", f"{attack.roots}/acme/m", "file:///etc/passwd", "x/../../acme/m"):
        assert attack.ask("POST", f"{at}/jobs", {"artifact": artifact}, "lab").status == 400
    (attack.roots / "lab/pictures").mkdir()
    batch = {**attack.train(at, "model.onnx", "lab"), "inputs": "pictures", "outputs": "out"}
    for change in ({"inputs": "/etc"}, {"inputs": "../acme"}, {"outputs": "/tmp"}, {"outputs": "../acme/out"}):
        assert attack.ask("POST", f"{at}/batch_inference/start", {**batch, **change}, "lab").status == 400


def test_a_model_of_data_is_served_as_before(attack: Attack) -> None:
    (attack.roots / "acme/iris.onnx").write_bytes(IRIS.read_bytes())
    at = attack.experiment("acme")
    started = attack.ok("POST", f"{at}/inference_microservice/start", attack.train(at, "iris.onnx", "acme"), "acme")
    job = f"{at}/jobs/{started['job_id']}/inference_microservice"
    eventually(lambda: attack.ok("GET", f"{job}/status", org="acme")["model_loaded"], "the model", pause_s=0.1)
    assert attack.ok("POST", f"{job}/inference", FLOWER, "acme")["status"] == "completed"
    attack.ok("POST", f"{job}/stop", org="acme")
