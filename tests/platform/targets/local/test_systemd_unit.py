"""The systemd unit: what it says, and that systemd understands it."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import cgroups
from pilotlight.targets.local.systemd_unit import Unit, systemd_version


def parsed(unit: Unit) -> configparser.ConfigParser:
    reader = configparser.ConfigParser(interpolation=None, strict=False)
    reader.optionxform = str  # type: ignore[assignment,method-assign]
    reader.read_string(unit.text())
    return reader


def test_replicas_outlive_the_control_process_and_end_with_the_unit(tmp_path: Path) -> None:
    service = parsed(Unit(Home(tmp_path), python="/usr/bin/python3", flags=("--gateway-port", "9")))["Service"]
    assert service["ExecStart"] == "/usr/bin/python3 -m platformctl up --foreground --gateway-port 9"
    assert service["ExecStop"] == "/usr/bin/python3 -m platformctl down"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "0")
    assert service["KillMode"] == "process"
    assert (service["Delegate"], service["OOMPolicy"]) == ("yes", "continue")
    assert service["StandardError"] == f"append:{tmp_path}/logs/daemon.log"


@pytest.mark.parametrize("system", [True, False])
def test_hardening_leaves_gpus_alone(tmp_path: Path, system: bool) -> None:
    text = Unit(Home(tmp_path), system).text()
    for breaks in ("PrivateDevices", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute", "NoNewPrivileges"):
        assert breaks not in text
    assert ("ProtectSystem=full" in text) == system
    assert ("multi-user.target" if system else "default.target") in text


def test_a_user_has_the_unit_in_the_configuration_folder_and_lingers(tmp_path: Path) -> None:
    unit = Unit(Home(tmp_path), environ={"XDG_CONFIG_HOME": "/c"})
    assert unit.path == Path("/c/systemd/user/pilotlight.service")
    assert unit.commands(install=True, start=True) == (
        ("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", "--now", "pilotlight.service"),
        ("loginctl", "enable-linger"),
    )  # fmt: skip
    assert Unit(Home(tmp_path), system=True).path == Path("/etc/systemd/system/pilotlight.service")


def test_settings_of_the_shell_are_kept_and_others_are_not(tmp_path: Path) -> None:
    environ = {"PILOTLIGHT_PILOT_LIGHT": "off", "PILOTLIGHT_TOKEN": "secret", "PILOTLIGHT_API_PORT": ""}
    text = Unit(Home(tmp_path / 'a "b" 50%'), environ=environ).text()
    assert f'Environment="PILOTLIGHT_HOME={tmp_path}/a \\"b\\" 50%%"' in text
    assert "Environment=PILOTLIGHT_PILOT_LIGHT=off" in text
    assert "secret" not in text
    assert "API_PORT" not in text


def test_limits_need_a_subgroup_for_the_control_process(tmp_path: Path) -> None:
    """systemd cannot restart it in a group whose subgroups have limits."""
    assert "DelegateSubgroup" not in Unit(Home(tmp_path), version=252).text()
    assert "DelegateSubgroup=control" in Unit(Home(tmp_path), version=254).text()
    (tmp_path / "cgroup.controllers").touch()
    unit = tmp_path / "pilotlight.service"
    (unit / "control").mkdir(parents=True)
    assert cgroups.find_groups("k", tmp_path, "0::/pilotlight.service\n", by_systemd=True) is None
    assert cgroups.find_groups("k", tmp_path, "0::/pilotlight.service/control\n", by_systemd=True) is not None
    assert (unit / "k").is_dir()


def test_a_sandbox_has_its_group_beside_the_subgroup_that_systemd_starts_it_in(tmp_path: Path) -> None:
    """It is a child of the control process, which has made the group of the home."""
    (tmp_path / "cgroup.controllers").touch()
    unit, own = tmp_path / "pilotlight.service", "0::/pilotlight.service/control\n"
    (unit / "control").mkdir(parents=True)
    assert cgroups.find_groups("k", tmp_path, own, by_systemd=True) is not None
    sandbox = cgroups.find_groups("k", tmp_path, own)
    assert sandbox is not None
    sandbox.confine("iris-1", 4711, 1 << 20, None)
    assert (unit / "k/iris-1/cgroup.procs").read_text() == "4711"
    assert not (unit / "control/k").exists()


@pytest.mark.parametrize("system", [True, False])
def test_systemd_understands_the_unit(tmp_path: Path, system: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    home = Home(tmp_path / "home with space")
    unit = Unit(home, system, systemd_version(), ("--prometheus", "http://127.0.0.1:9"), os.environ, sys.executable)
    file = tmp_path / "pilotlight.service"
    file.write_text(unit.text())
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    command = ["systemd-analyze", *(() if system else ("--user",)), "verify", str(file)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)
    said = [line for line in done.stderr.splitlines() if "pilotlight.service" in line]
    assert (done.returncode, said) == (0, []), done.stderr
