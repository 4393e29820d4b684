"""docs/how-to/python.md, section Client: its examples run against a server, its figures are those of the code."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.onnx_models import write_python
from tests.platform.client.conftest import SPEAKER, SPEAKER_CONFIG
from tests.serving import ROOT, RunningServer

from pilotlight.client import clients

SECTION = page_section("docs/how-to/python.md", "Client")
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
WRITTEN_FOR = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> dict[str, str]:
    """URLs of the iris model and of one that chats: each is the only model of its server."""
    iris, chat = tmp_path_factory.mktemp("iris"), tmp_path_factory.mktemp("chat")
    shutil.copytree(ROOT / "examples" / "iris" / "repository", iris, dirs_exist_ok=True)
    (iris / "iris" / "1").mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "iris" / "model.onnx", iris / "iris" / "1" / "model.onnx")
    write_python(chat, "speaker", SPEAKER, SPEAKER_CONFIG)
    return {"iris": serve_module(iris).url, "chat": serve_module(chat).url}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_and_prints_what_it_says(servers: dict[str, str], example: str, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(example.replace(WRITTEN_FOR, servers["chat" if "chat" in example else "iris"]))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    for said in re.findall(r"print\(error\)  # (.*)", example):
        assert done.stdout.strip() == said


def test_the_defaults_are_on_the_page() -> None:
    assert f"The client's is {clients.TIMEOUT_S:g} seconds" in SECTION
    assert f"`retries` times ({clients.RETRIES})" in SECTION
