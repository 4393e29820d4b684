"""The example notebook and the page run as they stand there, on a platform of their own."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import IRIS, processes_of
from tests.platform.sdk.notebook_session import run_cells
from tests.ports import free_port

from pilotlight.targets.local.home_directory import Home

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "examples/notebook/petals.ipynb"


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    home = Home(tmp_path / "home")
    variables = {
        "PILOTLIGHT_HOME": str(home.root), "PILOTLIGHT_GATEWAY_PORT": str(free_port()),
        "PILOTLIGHT_API_PORT": str(free_port()), "PILOTLIGHT_SERVICE_PORTS": "0", "PILOTLIGHT_PILOT_LIGHT": "off",
    }  # fmt: skip
    yield variables
    subprocess.run([sys.executable, "-m", "platformctl", "down"], env=variables, capture_output=True, timeout=120)
    assert processes_of(home) == []


def cells() -> list[str]:
    document = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def test_a_class_is_deployed_tried_as_a_canary_and_rolled_back_in_twenty_lines(environ: dict[str, str]) -> None:
    lines = [line for cell in cells() for line in cell.splitlines() if line.strip()]
    assert len(lines) <= 20
    printed = run_cells(cells(), environ).splitlines()
    assert printed[:3] == ["[1.]", "[1.]", "[2.]"]
    assert re.fullmatch(r"\{'petals-predictor-[0-9a-f]{8}': 100\}", printed[3])
    assert len(printed) == 4
    left = subprocess.run(
        [sys.executable, "-m", "platformctl", "list", "-o", "json"], env=environ, capture_output=True, text=True
    )
    assert json.loads(left.stdout) == {"services": []}


def test_the_notebook_was_saved_without_outputs() -> None:
    document = json.loads(NOTEBOOK.read_text())
    assert not [cell for cell in document["cells"] if cell.get("outputs") or cell.get("execution_count")]


def test_the_examples_of_the_page_run(environ: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/python.md").read_text()
    section = page[page.index("\n## Deploy from Python\n") :]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) >= 4
    (tmp_path / "model.onnx").write_bytes(IRIS.read_bytes())
    run_cells([f"%cd -q {tmp_path}", *blocks], environ)
