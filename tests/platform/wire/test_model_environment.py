"""Environments of models: built by uv from a folder of wheels, shared, refused by name, collected."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.wheels import offline, write_source, write_wheel

from pilotlight.wire.environments import environment
from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.environments.requirements import Requirements, RequirementsRefused, find
from pilotlight.wire.shared_files import try_lock


class Index:
    """A folder of wheels, a model, and the environments that are built for it."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.environments, self.model = folder / "wheels", folder / "environments", folder / "model"
        self.model.mkdir()
        (self.model / "model.py").write_text("")
        self.lines: list[str] = []
        write_wheel(self.wheels, "tiny", source="ANSWER = 42", requires=["numpy>=2", "smaller"])
        write_wheel(self.wheels, "smaller")

    def requirements(self, text: str) -> Requirements:
        (self.model / "requirements.txt").write_text(text)
        found = find(str(self.model))
        assert found is not None
        return found

    def build(self, text: str) -> Path:
        return self.ensure(self.requirements(text))

    def ensure(self, requirements: Requirements) -> Path:
        environ = {**os.environ, **offline(self.wheels)}
        return environment.ensure(requirements, self.environments, environ, self.lines.append)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def python(folder: Path, code: str) -> str:
    command = [environment.python_of(folder), "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_has_the_requirements_and_sees_this_installation_behind_them(index: Index) -> None:
    built = index.build("tiny")
    code = "import numpy, tiny, smaller, pilotlight_predictor; print(tiny.__file__, numpy.__file__, tiny.ANSWER)"
    own, ours, answer = python(built, code).split()
    assert (Path(own).is_relative_to(built), Path(ours).is_relative_to(sys.prefix), answer) == (True, True, "42")
    assert python(built, "from importlib.metadata import version; print(version('numpy'), version('tiny'))").endswith(
        " 1.0"
    )
    assert any(line.startswith("Installed 2 packages") for line in index.lines), index.lines


def test_another_version_than_the_installed_one_wins(index: Index) -> None:
    write_wheel(index.wheels, "click", "99.0", source="NEW = True")
    assert python(index.build("click==99.0"), "import click; print(click.NEW)") == "True"


def test_equal_requirements_are_built_once_and_touched_by_each_use(index: Index) -> None:
    built = index.build("tiny")
    os.utime(built, (0, 0))
    index.lines.clear()
    assert index.build("tiny") == built
    assert index.lines == []
    assert time.time() - built.stat().st_mtime < 600
    assert index.build("tiny\n# another file") != built


def test_two_at_once_share_one_build(index: Index) -> None:
    requirements = index.requirements("tiny")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(index.ensure, [requirements] * 2)
    assert first == second
    assert sum(line.startswith("Installed") for line in index.lines) == 1


def test_an_interrupted_build_leaves_nothing_and_can_be_repeated(index: Index) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    requirements, environ = index.requirements("tiny"), {**os.environ, **offline(index.wheels)}
    with pytest.raises(KeyboardInterrupt):
        environment.ensure(requirements, index.environments, environ, interrupt)
    assert [path.suffix for path in index.environments.iterdir()] == [".lock"]
    killed = index.environments / f"{environment.key_of(requirements)}.partial-dead"
    (killed / "bin").mkdir(parents=True)
    (index.environments / environment.key_of(requirements)).mkdir()
    assert python(index.ensure(requirements), "import tiny; print(tiny.ANSWER)") == "42"
    assert not killed.exists()


def test_a_lock_file_is_installed_as_it_says(index: Index) -> None:
    project = '[project]\nname = "m"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["tiny"]\n'
    (index.model / "pyproject.toml").write_text(project)
    write_wheel(index.wheels, "smaller", "2.0")
    package = '\n[[package]]\nname = "{}"\nversion = "1.0"\nsource = {{ registry = "https://index.example/simple" }}\n'
    (index.model / "uv.lock").write_text(
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n'
        '\n[[package]]\nname = "m"\nversion = "1"\nsource = { virtual = "." }\ndependencies = [{ name = "tiny" }]\n'
        '\n[package.metadata]\nrequires-dist = [{ name = "tiny" }]\n'
        + package.format("smaller")
        + package.format("tiny")
        + 'dependencies = [{ name = "smaller" }]\n'
    )
    requirements = find(str(index.model))
    assert requirements is not None
    (index.model / "uv.lock").write_text("other")  # what is installed under a hash is what it was taken of
    (index.model / "pyproject.toml").write_text("other")
    built = index.ensure(requirements)
    assert python(built, "from importlib.metadata import version; print(version('smaller'))") == "1.0"
    (index.model / "uv.lock").write_text("version = 1")
    (index.model / "pyproject.toml").write_text(project + "[tool.uv.workspace]\nmembers = ['../*']\n")
    requirements = find(str(index.model))
    assert requirements is not None
    with pytest.raises(RequirementsRefused, match=r"tool\.uv\.workspace reads other folders"):
        index.ensure(requirements)


def test_a_conflict_with_our_own_dependencies_is_refused_by_name(index: Index) -> None:
    write_wheel(index.wheels, "antique", requires=["numpy<2"])
    with pytest.raises(RequirementsRefused, match=r"conflicts with Pilotlight, which needs numpy>=2\.1"):
        index.build("antique")
    assert not [path for path in index.environments.iterdir() if path.is_dir()]


def test_a_package_without_a_wheel_is_refused_by_name(index: Index) -> None:
    write_source(index.wheels, "sourceonly", "raise SystemExit")
    with pytest.raises(RequirementsRefused, match="sourceonly has no wheel for Python 3") as refused:
        index.build("sourceonly")
    assert refused.value.hint == "pip wheel sourceonly, and add its folder to UV_FIND_LINKS"


def test_an_unknown_package_is_refused_by_name(index: Index) -> None:
    with pytest.raises(RequirementsRefused, match="nosuchpackage is in no configured package index"):
        index.build("nosuchpackage")


def test_a_hash_that_differs_is_refused(index: Index) -> None:
    with pytest.raises(RequirementsRefused, match=r"[Hh]ash"):
        index.build(f"smaller==1.0 --hash=sha256:{'0' * 64}")


def test_a_missing_uv_is_refused_with_the_command_that_installs_it(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(RequirementsRefused, match="needs uv, which is not installed") as refused:
        environment.ensure(index.requirements("tiny"), index.environments, {"PATH": ""}, index.lines.append)
    assert refused.value.hint.startswith(install_command("requirements"))


def test_an_installation_that_does_not_end_is_killed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = index.requirements("smaller")
    uv = index.wheels / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\nexec sleep 600\n")
    uv.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(index.wheels))
    monkeypatch.setattr(environment, "INSTALL_S", 0.1)
    with pytest.raises(RequirementsRefused, match="uv was killed"):
        index.ensure(requirements)


def test_what_is_unused_for_long_is_collected_unless_it_is_needed(index: Index) -> None:
    kept, unused, fresh = (index.build(f"smaller\n# {name}") for name in ("kept", "unused", "fresh"))
    for path in index.environments.iterdir():
        if not path.name.startswith(fresh.name):
            os.utime(path, (0, 0))
    assert environment.collect(index.environments, {kept.name}, time.time()) == [unused.name]
    assert {path.name.partition(".")[0] for path in index.environments.iterdir()} == {kept.name, fresh.name}
    assert environment.collect(index.environments / "gone", (), time.time()) == []


def test_what_a_killed_installation_left_is_collected_once_nobody_installs_it(index: Index) -> None:
    built = index.build("smaller")
    partial = index.environments / f"{built.name}.partial-0"
    partial.mkdir()
    with try_lock(index.environments / f"{built.name}.lock") or pytest.fail("it is locked"):
        environment.collect(index.environments, (), time.time())
        assert partial.exists()
    assert environment.collect(index.environments, (), time.time()) == []
    assert (partial.exists(), built.exists()) == (False, True)
