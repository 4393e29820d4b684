"""`up --install` and `down --uninstall`: the unit on the disk, and what is typed where systemd does not run."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from pilotlight.targets.local import systemd_unit


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "no-systemd"))
    return tmp_path / "config" / "systemd" / "user" / systemd_unit.NAME


def test_a_dry_run_prints_the_unit_and_writes_nothing(call: Call, config: Path, tmp_path: Path) -> None:
    done = call("up", "--install", "--user", "--dry-run", "--gateway-port", "8095")
    assert done.code == 0
    assert "up --foreground --gateway-port 8095\n" in done.out
    assert json.loads(call("up", "--install", "--user", "--dry-run", "-o", "json").out)["unit"] == str(config)
    assert not config.exists()
    assert not (tmp_path / "home").exists()


def test_a_unit_is_installed_once_and_removed(call: Call, config: Path, tmp_path: Path) -> None:
    done = call("up", "--install", "--user")
    assert done.code == 0, done.err
    assert done.out == f"{config}\n"
    assert "systemd does not run here; where it does, type:" in done.err
    assert "systemctl --user enable --now pilotlight.service" in done.err
    assert f"PILOTLIGHT_HOME={tmp_path / 'home'}" in config.read_text()
    again = json.loads(call("up", "--install", "--user", "-o", "json").out)
    assert (again["changed"], again["enabled"], again["unit"]) == (False, False, str(config))
    done = call("down", "--uninstall", "--user")
    assert done.code == 0, done.err
    assert not config.exists()
    done = call("down", "--uninstall", "--user")
    assert done.code == 0
    assert "does not exist" in done.err


@pytest.mark.parametrize(
    "words", [("up", "--dry-run"), ("up", "--user"), ("up", "--install", "--foreground"), ("down", "--system")]
)
def test_options_that_do_not_go_together_are_refused(call: Call, config: Path, words: tuple[str, ...]) -> None:
    assert call(*words).code == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls-cert", "tls.crt"), "--https is missing"),
        (("--https", "0.0.0.0:8443"), "--tls-cert is missing"),
        (("--https", "8443", "--tls-cert", "tls.crt"), "must be host:port such as 0.0.0.0:8443"),
        (("--https", "0.0.0.0:8443", "--tls-cert", "nowhere.crt"), "nowhere.crt: No such file or directory"),
    ],
)
def test_settings_of_https_that_cannot_work_are_refused_before_a_start(
    call: Call, config: Path, flags: tuple[str, ...], message: str
) -> None:
    done = call("up", *flags)
    assert done.code == 2
    assert message in done.err
