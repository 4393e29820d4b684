"""A control process whose API is asked as clients of TAO's API ask it; one for all tests here."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.embedded import IRIS, ROOT, Platform
from tests.eventually import eventually
from tests.http_reply import Reply
from tests.object_stores import S3_SECRET

PATIENCE_S = 90.0
ORG = "acme"
FLOWER = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}


@dataclass
class Api:
    """`token` is an org's, `admin` the platform's own."""

    platform: Platform
    key: str = ""
    token: str = ""
    started: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.platform.address.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1"

    @property
    def admin(self) -> str:
        return self.platform.address.token

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, headers: Mapping[str, str] = {}
    ) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        shown = self.token if token is None else token
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
            bearer = {"Authorization": f"Bearer {shown}"} if shown else {}
            connection.request(method, f"/api/v1{path}", sent, {**bearer, **headers})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
        reply = self.ask(method, path, body, **how)
        assert reply.status in (200, 201), reply.body
        return reply.json()

    def login(self, key: str, org: str = ORG) -> Reply:
        return self.ask("POST", "/login", {"ngc_key": key, "ngc_org_name": org}, token="")

    def ctl(self, *words: str) -> str:
        """`platformctl` in the home of this platform."""
        command = [sys.executable, "-m", "platformctl", *words]
        done = subprocess.run(command, env=self.platform.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def train(self, artifact: Path, network_arch: str = "pilotlight", org: str = ORG) -> tuple[str, str]:
        """Experiment and finished training whose model lies there, put in by the operator."""
        at = f"/orgs/{org}/experiments"
        experiment = self.ok("POST", at, {"network_arch": network_arch}, token=self.admin)["id"]
        body = {"artifact": str(artifact)}
        return experiment, self.ok("POST", f"{at}/{experiment}/jobs", body, token=self.admin)["id"]

    def start(self, experiment: str, parent: str) -> str:
        told = self.ok(
            "POST", f"/orgs/{ORG}/experiments/{experiment}/inference_microservice/start", {"parent_id": parent}
        )
        assert told == {"job_id": told["job_id"], "status": "pending", "message": "Inference microservice starting"}
        return str(told["job_id"])

    def microservice(self, experiment: str, job: str) -> str:
        return f"/orgs/{ORG}/experiments/{experiment}/jobs/{job}/inference_microservice"

    def wait(self, holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        def check() -> None:
            assert self.platform.answers(), self.platform.log()

        eventually(holds, lambda: f"{what}\n{self.platform.log()}", seconds, pause_s=0.05, check=check)

    def wait_back(self) -> None:
        """After the death of the control process, which the gateway notices."""
        until = time.monotonic() + PATIENCE_S
        while not self.platform.answers():
            assert time.monotonic() < until, self.platform.log()
            time.sleep(0.05)

    def wait_loaded(self, at: str) -> None:
        def loaded() -> bool:
            told = self.ok("GET", f"{at}/status")
            assert told["status"] != "error", told
            return bool(told["model_loaded"])

        self.wait(loaded, "the model to be loaded")


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    media = folder / "media"
    media.mkdir()
    env = {
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json"),
        "PILOTLIGHT_MEDIA_ROOTS": str(media),
        "PILOTLIGHT_WORKSPACE_ROOTS": str(folder / "workspaces"),
        "PILOTLIGHT_MEDIA_NETWORKS": "127.0.0.0/8",
        "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true",
        "WORKSPACE_ACME__ID": "testing",
        "WORKSPACE_ACME__SECRET": S3_SECRET,
        "PILOTLIGHT_PROMETHEUS": "",
    }
    with Platform(folder / "home", env) as platform:
        made = Api(platform)
        made.key = made.ctl("api", "key", "create", ORG)
        made.token = str(made.login(made.key).json()["token"])
        yield made


@pytest.fixture
def iris(api: Api) -> tuple[str, str]:
    return api.train(IRIS)


@pytest.fixture(autouse=True)
def _without_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PILOTLIGHT_")]:
        monkeypatch.delenv(name)
