"""Microservices from the command line, as a person or a script types it, with a registry of the test's own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.embedded import Platform
from tests.platform.microservices.conftest import PORTS, QUICK

from platformctl import main

FOREIGN = ("PILOTLIGHT_", "INFERENCE_", "IMAGE_", "SLURM_", "HF_", "TAO_", "WANDB_", "CLEARML_")
# Says what it was asked with, as a chat model does.
SAYS = """
import json
import numpy as np

INPUTS = {"messages": ("BYTES", [1]), "sampling_parameters": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


def predict(messages, sampling_parameters):
    if not messages[0]:  # the warm-up
        return {"text_output": np.array([""], dtype=object)}
    said = {"asked": json.loads(messages[0])[-1]["content"], "sampling": json.loads(sampling_parameters[0])}
    return {"text_output": np.array([json.dumps(said)], dtype=object)}
"""


def write_model(folder: Path, source: str = SAYS) -> Path:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(source)
    return folder


@dataclass(frozen=True)
class Ctl:
    """`platformctl microservice` in an environment of its own."""

    environ: dict[str, str]
    folder: Path

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Off a terminal, within this process."""
        return self.platformctl("microservice", *words, **environ)

    def platformctl(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        told, noted = StringIO(), StringIO()
        own = patch.dict(os.environ, {**self.environ, **environ}, clear=True)
        with own, chdir(self.folder), redirect_stdout(told), redirect_stderr(noted):
            code = main.run(words)
        return subprocess.CompletedProcess(words, code, told.getvalue(), noted.getvalue())

    def apart(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own, which has ended then."""
        return subprocess.run(
            self.words(*words), env={**self.environ, **environ}, cwd=self.folder, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=390, check=False,
        )  # fmt: skip

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "platformctl", "microservice", *words]

    def do(self, *words: str, **environ: str) -> str:
        """Must succeed."""
        done = self.run(*words, **environ)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def start(self, model: Path, *words: str) -> dict[str, Any]:
        told = self.do("start", "pilotlight", "--model-path", str(model), "-o", "json", *words)
        found: dict[str, Any] = json.loads(told)
        return found

    @property
    def registry(self) -> dict[str, Any]:
        path = Path(self.environ["PILOTLIGHT_MICROSERVICE_REGISTRY"])
        return dict(json.loads(path.read_text())) if path.exists() else {}


@pytest.fixture
def ctl(tmp_path: Path, embedded: Platform) -> Iterator[Ctl]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    own = {
        "PILOTLIGHT_HOME": str(embedded.home.root),
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"),
    }
    made = Ctl({**kept, **PORTS, **QUICK, **own}, tmp_path)
    yield made
    for job_id in [name for name in made.registry if name != "latest"]:
        made.run("stop", job_id)


@pytest.fixture
def alone(ctl: Ctl, tmp_path: Path) -> Iterator[Ctl]:
    """One with a home of its own, where no platform runs until a verb starts it."""
    yield Ctl({**ctl.environ, "PILOTLIGHT_HOME": str(tmp_path / "home")}, tmp_path)
    assert ctl.platformctl("down", PILOTLIGHT_HOME=str(tmp_path / "home")).returncode == 0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "says")
