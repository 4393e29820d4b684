"""The plan of a sandbox: what it shows, whose uid it has, and what is refused. tests/security plays the attacker."""

import os
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.targets.local.supervisor.isolation.sandbox_launcher import Plan


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "detect", lambda: sandbox.Sandbox("own uid"))


def planned(model: Path, home: Path, **environ: str) -> Plan:
    uid = sandbox.uid_of(8080)
    return sandbox.plan("j", uid, (str(model), str(model)), ["/bin/true"], Home(home), home / "cache", environ)


def test_it_shows_the_system_and_the_model_but_neither_home_nor_other_folders(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    plan = planned(tmp_path / "model", tmp_path / "home")
    shown = [Path(source) for source, _ in plan.read_only]
    assert tmp_path / "model" in shown
    assert Path("/usr") in shown
    assert not {Path("/"), Path("/etc"), Path("/home"), Path("/root"), Path("/run"), Path("/var")} & set(shown)
    assert plan.writable == ((str(tmp_path / "home/cache"), sandbox.CACHE),)
    assert (plan.memory, plan.cpus, plan.processes) == (4 * 2**30, 2.0, 512)


def test_it_sees_the_copy_in_place_of_the_orgs_own_files(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    model = str(tmp_path / "copy"), "/roots/evil/model"
    plan = sandbox.plan("j", sandbox.uid_of(0), model, [], Home(tmp_path / "home"), tmp_path, {})
    assert plan.read_only[-1] == (str(tmp_path / "copy"), "/roots/evil/model")
    assert "/roots/evil/model" not in [source for source, _ in plan.read_only]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_port_has_a_uid_of_its_own() -> None:
    uids = {sandbox.uid_of(port) for port in range(8080, 8200)}
    assert len(uids) == 120
    assert 61184 <= min(uids) <= max(uids) <= 65519


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_replica_has_a_uid_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "crc32", lambda _: 4094)  # as of replicas whose names collide
    home, uids = Home(tmp_path), list[int]()
    for number in range(4):
        folder = home.sockets / f"iris-{number}"
        folder.mkdir(parents=True)
        uids.append(sandbox.free_uid(home, folder.name))
        os.chown(folder, uids[-1], -1)
    assert uids == [65278, 65279, 61184, 61185]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("closed", ["model", "model/model.py"])
def test_a_model_that_its_user_cannot_read_is_refused_with_the_command(tmp_path: Path, closed: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.py").touch()
    planned(tmp_path / "model", tmp_path / "home")
    (tmp_path / closed).chmod(0o700)
    with pytest.raises(UsageError, match="must be readable by the user of its sandbox") as refused:
        planned(tmp_path / "model", tmp_path / "home")
    assert refused.value.hint == f"chmod -R o+rX {tmp_path / 'model'}"


def test_a_home_that_it_would_show_is_refused() -> None:
    with pytest.raises(PlatformError, match="a sandbox would see /usr/share/home, which lies in /usr"):
        planned(Path("/usr"), Path("/usr/share/home"))


def test_limits_are_numbers(tmp_path: Path) -> None:
    assert planned(Path("/usr"), tmp_path, PILOTLIGHT_API_SANDBOX_MEMORY="1Gi").memory == 2**30
    with pytest.raises(UsageError, match="PILOTLIGHT_API_SANDBOX_CPUS = many, must be a number above 0"):
        planned(Path("/usr"), tmp_path, PILOTLIGHT_API_SANDBOX_CPUS="many")


def test_without_a_sandbox_it_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "detect", lambda: sandbox.Sandbox(reason="unshare: Operation not permitted"))
    with pytest.raises(PlatformError, match="which is not available: unshare: Operation not permitted"):
        planned(Path("/usr"), tmp_path)
