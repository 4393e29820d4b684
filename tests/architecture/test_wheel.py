"""The wheel that people install: it holds the three packages whole, and works without the checkout."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.architecture.source_tree import PACKAGES, ROOT

NAMES = [Path(package).name for package in PACKAGES]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


def test_it_holds_every_source_and_marks_the_packages_as_typed(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    for package in PACKAGES:
        folder = ROOT / package
        files = (path for path in folder.rglob("*") if path.suffix in {".py", ".yaml", ".sql"})
        wanted = {str(path.relative_to(folder.parent)) for path in files}
        assert wanted <= held
        assert f"{folder.name}/py.typed" in held


def test_it_holds_every_template(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    charts = ROOT / "helm"
    paths = [*ROOT.glob("k[ne]*/*.j2"), charts / "inference-platform/files/rules.yaml"]
    paths += [*charts.glob("inference-platform/files/dashboards/*"), *charts.glob("inference-service/*.yaml")]
    wanted = {f"pilotlight/templates/{path.relative_to(ROOT)}" for path in paths}
    assert len(wanted) > 10
    assert wanted <= held


def test_it_holds_every_file_of_its_pages(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(ROOT / "platform")) for path in ROOT.glob("platform/pilotlight/*/static/*")}
    assert wanted
    assert wanted <= held


def test_it_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(NAMES)
    assert any(name.endswith("/licenses/LICENSE") for name in ZipFile(wheel).namelist())


def test_it_installs_and_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", tmp_path, wheel]
    subprocess.run(install, check=True, capture_output=True)
    files = ", ".join(f"{name}.__file__" for name in NAMES)
    code = f"""
import {", ".join(NAMES)}, pilotlight_predictor.bootstrap.startup
from platformctl.commands.platform import demo
print({files}, *demo.documents().glob("*.yaml"), *demo.documents().glob("../iris/model.onnx"))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages, examples = done.stdout.split()[: len(NAMES)], done.stdout.split()[len(NAMES) :]
    assert packages == [str(tmp_path / name / "__init__.py") for name in NAMES]
    names = {os.path.relpath(each, tmp_path / "pilotlight/templates/examples") for each in examples}
    assert names == {"demo/iris.yaml", "demo/iris-batching.yaml", "iris/model.onnx"}


def test_its_version_is_the_one_that_the_packages_tell() -> None:
    import pilotlight
    import pilotlight_predictor

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == pilotlight.__version__ == pilotlight_predictor.__version__
