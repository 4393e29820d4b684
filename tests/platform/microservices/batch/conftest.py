"""Batch jobs with real predictors: a classifier of colours, and a model that waits until a test opens a gate."""

import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests import object_stores
from tests.embedded import Platform
from tests.object_stores import AZURE_ACCOUNT
from tests.onnx_models import write_model, write_python
from tests.platform.microservices.conftest import PORTS, QUICK

from pilotlight.microservices.batch import jobs
from pilotlight.microservices.batch.job_folder import Batch, Progress
from pilotlight.microservices.media import Limits
from pilotlight.microservices.registry.records import Workspace
from pilotlight.targets.local.home_directory import Home

PATIENCE_S = 100.0
LOOPBACK = Limits(networks=("127.0.0.0/8", "::1/128"), allow_http=True)
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
DECLARED = "kind: classification\nlabels: [red, green, blue]\nprepare: {size: [4, 4]}\n"
FOREIGN = re.compile(r"^(AWS|AZURE|WORKSPACE|PILOTLIGHT|INFERENCE|K)_|_PROXY$", re.IGNORECASE)

# Answers with its input; one of 3 or more waits until the gate is open, and says before that it was asked.
GATED = """
import os
import time

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    if x[0] >= 3:
        with open("{folder}/asked", "a") as file:
            file.write(f"{int(x[0])}\\n")
        while not os.path.exists("{folder}/open"):
            time.sleep(0.02)
    return x
"""


@dataclass
class Here:
    """The platform of all tests here, with a workspace of the test's own in a folder of this machine."""

    home: Home
    environ: dict[str, str]
    root: Path

    @property
    def workspace(self) -> Workspace:
        return Workspace(str(self.root / "workspace"))

    def batch(self, model: Path, network_arch: str = "classification", **changes: Any) -> Batch:
        given: dict[str, Any] = {"workspace": self.workspace, "inputs": "in", "outputs": "out", **changes}
        return Batch(str(uuid4()), network_arch, str(model), **given)

    def start(self, batch: Batch) -> str:
        jobs.start(self.home, batch, self.environ)
        return batch.id

    def look(self, job_id: str) -> Progress:
        return jobs.status(self.home, job_id, self.environ)

    def wait(self, job_id: str) -> Progress:
        return jobs.wait(self.home, job_id, self.environ, PATIENCE_S)


@pytest.fixture
def here(tmp_path: Path, embedded: Platform) -> Iterator[Here]:
    clean = {name: value for name, value in os.environ.items() if not FOREIGN.search(name)}
    own = {
        "PILOTLIGHT_HOME": str(embedded.home.root),
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"),
    }
    (tmp_path / "workspace" / "in").mkdir(parents=True)
    made = Here(embedded.home, {**clean, **PORTS, **QUICK, **own}, tmp_path)
    yield made
    for each in jobs.list_jobs(made.home, made.environ):
        jobs.cancel(made.home, each.job_id, made.environ)
        made.wait(each.job_id)
    shutil.rmtree(made.home.root / "batch", ignore_errors=True)


def picture(colour: str, size: tuple[int, int] = (5, 4)) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", size, COLOURS[colour]).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """How much of each colour a picture has, with a declaration beside it."""
    nodes = [("GlobalAveragePool", ["x"], ["mean"]), ("Flatten", ["mean"], ["flat"]), ("Softmax", ["flat"], ["y"])]
    shapes = {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))}
    folder = write_model(tmp_path_factory.mktemp("colours"), "model", nodes, *shapes)
    (folder / "parameters.yaml").write_text(DECLARED)
    return folder


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return write_python(tmp_path / "models", "model", GATED.replace("{folder}", str(tmp_path)))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    with object_stores.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    with object_stores.azurite() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: str) -> tuple[Workspace, dict[str, str]]:
    bucket = object_stores.s3_bucket(s3_server, f"batch-{uuid4().hex[:12]}")
    named = {"access_key": "env:WORKSPACE_ACCESS", "secret_key": "env:WORKSPACE_SECRET"}
    variables = {"WORKSPACE_ACCESS": "testing", "WORKSPACE_SECRET": bucket.secret}
    return Workspace(f"{bucket.root}/team", endpoint=s3_server, credentials=named), variables


@pytest.fixture
def azure(azure_server: str) -> tuple[Workspace, dict[str, str]]:
    bucket = object_stores.az_bucket(azure_server, f"batch-{uuid4().hex[:12]}")
    named = {"account_key": "env:WORKSPACE_KEY"}
    workspace = Workspace(f"{bucket.root}/team", endpoint=azure_server, account=AZURE_ACCOUNT, credentials=named)
    return workspace, {"WORKSPACE_KEY": bucket.secret}
