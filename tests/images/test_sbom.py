"""An image's bill of materials says what its lock file says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def bill(lock: Path) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "requirements/sbom.py"), str(lock)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("variant", ["cpu", "cuda", "sklearn", "text", "torch", "platform"])
def test_it_lists_every_pin_of_the_lock_and_nothing_else(variant: str) -> None:
    lock = ROOT / f"requirements/image-{variant}.txt"
    pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE))
    assert {(each["name"], each["version"]) for each in bill(lock)["components"]} == pinned


def test_a_pin_keeps_its_marker_and_its_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"a-b==1.0 ; python_version < '3.12' \\\n    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{'2' * 64}\n"
        f"c==2 \\\n    --hash=sha256:{'3' * 64}\n"
    )
    first, second = bill(lock)["components"]
    assert first["purl"] == "pkg:pypi/a-b@1.0"
    values = [each["value"] for each in first["properties"]]
    assert values == ["python_version < '3.12'", "1" * 64, "2" * 64]
    assert [each["value"] for each in second["properties"]] == ["3" * 64]


def test_it_is_a_cyclonedx_document_about_this_project() -> None:
    found = bill(ROOT / "requirements/image-cpu.txt")
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "pilotlight"
    references = [each["bom-ref"] for each in found["components"]]
    assert len(references) == len(set(references))


def test_it_needs_to_be_told_a_lock() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "requirements/sbom.py")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: sbom.py LOCK_FILE\n")
