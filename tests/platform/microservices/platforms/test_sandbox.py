"""The plan of a sandbox: what it shows, whose uid it has, and what is refused. tests/security plays the attacker."""

import os
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.platforms import sandbox
from pilotlight.microservices.platforms.sandbox_launcher import Plan
from pilotlight.microservices.registry.records import Job
from pilotlight.targets.local.home_directory import Home


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "detect", lambda: sandbox.Sandbox("own uid"))


def planned(model: Path, home: Path, port: int = 8080, **environ: str) -> Plan:
    job = Job("j", "pilotlight", str(model), "", "", host_port=port, isolation="sandbox")
    return sandbox.plan(job, str(model), ["/bin/true"], Home(home), home / "cache", environ)


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
    job = Job("j", "pilotlight", "/roots/evil/model", "", "", isolation="sandbox")
    (tmp_path / "copy").mkdir()
    plan = sandbox.plan(job, str(tmp_path / "copy"), [], Home(tmp_path / "home"), tmp_path, {})
    assert plan.read_only[-1] == (str(tmp_path / "copy"), "/roots/evil/model")
    assert "/roots/evil/model" not in [source for source, _ in plan.read_only]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_port_has_a_uid_of_its_own(tmp_path: Path) -> None:
    uids = {planned(Path("/usr"), tmp_path, port).uid for port in range(8080, 8200)}
    assert len(uids) == 120
    assert 61184 <= min(uids) <= max(uids) <= 65519


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
    with pytest.raises(PlatformError, match="which this machine does not have: unshare: Operation not permitted"):
        planned(Path("/usr"), tmp_path)
