"""The lock files hold what pyproject.toml asks for, by hash, and name no place to get it from."""

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.architecture.source_tree import ROOT

FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def script(name: str) -> ModuleType:
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCKS = script("lock").LOCKS


def pins(name: str) -> dict[str, set[str]]:
    """A universal lock may pin two versions of a package for different Pythons or platforms."""
    found: dict[str, set[str]] = {}
    text = (FOLDER / f"{name}.txt").read_text()
    for package, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


def asked(name: str) -> list[Requirement]:
    lock = next(each for each in LOCKS if each.name == name)
    if lock.extras:
        extras = PROJECT["optional-dependencies"]
        lines = PROJECT["dependencies"] + [line for extra in lock.extras for line in extras[extra]]
    else:
        lines = [line for line in (FOLDER / f"{name}.in").read_text().splitlines() if line and line[0] != "#"]
    return [Requirement(line) for line in lines]


def test_every_source_has_a_lock_and_every_lock_a_source() -> None:
    names = {lock.name for lock in LOCKS}
    assert {path.stem for path in FOLDER.glob("*.in")} == {lock.name for lock in LOCKS if not lock.extras}
    assert {path.stem for path in FOLDER.glob("*.txt")} == names


@pytest.mark.parametrize("name", [lock.name for lock in LOCKS])
def test_a_lock_satisfies_what_is_asked(name: str) -> None:
    pinned = pins(name)
    for requirement in asked(name):
        versions = pinned.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not in {name}.txt: run make lock"
        assert all(requirement.specifier.contains(version, prereleases=True) for version in versions), requirement


@pytest.mark.parametrize("name", [lock.name for lock in LOCKS])
def test_every_pin_has_a_hash_and_no_place(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash)", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]


@pytest.mark.parametrize("name", ["run", "build", "docs"])
def test_locks_that_share_an_environment_agree(name: str) -> None:
    test = pins("test")
    mine = {package: versions for package, versions in pins(name).items() if package in test or name != "docs"}
    assert not {package: versions for package, versions in mine.items() if not versions <= test[package]}


def test_a_python_without_ensurepip_and_pip_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = script("environment")
    monkeypatch.setattr(environment, "has", lambda _: False)
    with pytest.raises(SystemExit, match="install python3-venv"):
        environment.main("unused")


def test_a_python_without_ensurepip_uses_the_pip_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    environment, calls = script("environment"), []
    monkeypatch.setattr(environment, "has", lambda module: module == "pip")
    monkeypatch.setattr(environment, "call", lambda *words: calls.append(words))
    environment.main("folder")
    assert "--without-pip" in calls[0]
    assert calls[1][1:5] == ("-m", "pip", "--python", "folder/bin/python")


def test_an_old_python_is_told_which_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = script("environment")
    monkeypatch.setattr(environment.sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"3\.11 or newer is needed"):
        environment.main("unused")
