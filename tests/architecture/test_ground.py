"""What a stranger expects of the repository: its packaging, its tools, and the files that say how to take part."""

import re
import tomllib
from typing import Any

import pytest
from tests.architecture.source_tree import PACKAGES, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = {"onnx", "gpu", "torch", "kserve", "cloud", "otel", "tensorflow", "tensorrt", "dev"}
# A predictor's image carries the core: neither a runtime nor a client of a cloud or a cluster.
LIGHT = {"aiohttp", "click", "google-re2", "jinja2", "msgspec", "numpy", "orjson", "promql-parser", "pyyaml", "uvloop"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", text)[0] for text in requirements}


def test_one_distribution_of_three_packages_with_one_script() -> None:
    project = PROJECT["project"]
    assert (project["name"], project["requires-python"], project["license"]) == ("pilotlight", ">=3.11", "Apache-2.0")
    assert project["scripts"] == {"platformctl": "platformctl.main:main"}
    assert PROJECT["build-system"]["build-backend"] == "hatchling.build"
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)


def test_the_core_is_light_and_runtimes_are_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert names(PROJECT["project"]["dependencies"]) <= LIGHT
    assert extras.keys() >= EXTRAS
    assert "onnxruntime-gpu" in names(extras["gpu"])
    assert "onnxruntime" not in names(extras["gpu"])


def test_types_are_strict_for_all_packages_and_warnings_are_errors() -> None:
    assert PROJECT["tool"]["mypy"]["strict"] is True
    checked = re.search(r"^PACKAGES := (.*)$", MAKEFILE, re.MULTILINE)
    assert checked is not None
    assert set(checked.group(1).split()) == set(PACKAGES)
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]


@pytest.mark.parametrize("tool", [".pre-commit-config.yaml", ".github/workflows/ci.yml", ".ci/run"])
def test_whatever_judges_a_change_runs_the_commands_of_the_makefile(tool: str) -> None:
    commands = re.findall(r"^\s*(?:- run:|entry:|exec) (.*)$", (ROOT / tool).read_text(), re.MULTILINE)
    assert commands
    assert all(command.startswith("make ") for command in commands)


def test_the_tests_ask_for_lint_types_and_units() -> None:
    assert re.search(r"^test: lint types unit\b", MAKEFILE, re.MULTILINE)
    for command in ("ruff check", "ruff format --check", "mypy $(PACKAGES)", "pytest"):
        assert f"$(BIN)/{command}" in MAKEFILE


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("LICENSE", "Apache License"),
        ("CHANGELOG.md", "Changelog"),
        ("CONTRIBUTING.md", "| backend |"),
        ("CONTRIBUTING.md", "| protocol |"),
        ("CONTRIBUTING.md", "| target |"),
        (".gitignore", ".venv"),
        (".editorconfig", "root = true"),
    ],
)
def test_the_usual_files_say_what_one_looks_for(file: str, words: str) -> None:
    assert words.lower() in (ROOT / file).read_text().lower()
