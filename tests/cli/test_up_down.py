"""The platform comes when it is needed and goes without a trace."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.certificates import Authority
from tests.embedded import commands_of, processes_of, serverless
from tests.ports import free_port

from pilotlight.errors import UsageError
from pilotlight.k8s.manifest import Manifest
from pilotlight.k8s.names import ANNOTATION_TOKENS
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.gateway.https_settings import HttpsSettings
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.target import ServiceStatus
from platformctl.commands.platform.up import check_https, is_open

ROOT = Path(__file__).resolve().parents[2]


def start(environ: dict[str, str], *argv: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "platformctl", *argv]
    return subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def typed(environ: dict[str, str], *argv: str) -> tuple[int, str, str]:
    process = start(environ, *argv)
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def test_two_commands_at_once_start_one_platform_and_down_ends_all_of_it(environ: dict[str, str], home: Home) -> None:
    both = [start(environ, "up", "-o", "json") for _ in range(2)]
    answers = [(process.communicate(timeout=100), process.returncode) for process in both]
    assert [code for _, code in answers] == [0, 0], answers
    pids = {json.loads(out)["pid"] for (out, _), _ in answers}
    assert len(pids) == 1
    assert home.token.stat().st_mode & 0o777 == 0o600
    assert home.root.stat().st_mode & 0o777 == 0o700
    code, out, err = typed(environ, "doctor", "-o", "json")
    found = {each["check"]: each["level"] for each in json.loads(out)["checks"]}
    assert (found["platform"], found["gateway"]) == ("ok", "ok"), out
    code, out, err = typed(environ, "down")
    assert (code, out) == (0, ""), err
    assert not processes_of(home)
    assert control_process_launcher.living(home) is None


def test_a_deploy_starts_the_platform_and_what_was_deployed_comes_back(environ: dict[str, str], home: Home) -> None:
    file = home.root.parent / "service.yaml"
    file.write_text(serverless())
    code, out, err = typed(environ, "deploy", "-f", str(file))
    assert code == 0, err
    assert "starting the platform" in err
    assert out.endswith("/iris\n")
    code, out, err = typed(environ, "down", "-o", "json")
    assert json.loads(out)["ended"] == ["default/iris"], err
    assert not processes_of(home)
    code, out, err = typed(environ, "list", "-o", "name")
    assert (code, out) == (0, ""), err
    assert "platformctl up starts it and brings back what was deployed" in err
    assert not processes_of(home)
    assert typed(environ, "up")[0] == 0
    code, out, err = typed(environ, "list", "-o", "name")
    assert (code, out) == (0, "default/iris\n"), err
    assert typed(environ, "scale", "iris", "--min", "1", "--wait")[0] == 0
    assert "ended 1 service with 1 replica, gateway, API" in typed(environ, "down")[2]


def test_down_ends_what_outlived_a_control_process_that_was_killed(environ: dict[str, str], home: Home) -> None:
    assert typed(environ, "up")[0] == 0
    address = control_process_launcher.living(home)
    assert address is not None
    (parent,) = [pid for pid, command in commands_of(home) if "parent_process.py" in command]
    os.kill(parent, signal.SIGSTOP)  # it would restart the control process while the doctor comes
    os.kill(address.pid, signal.SIGKILL)
    assert control_process_launcher.wait_exit(address, 60)
    assert control_process_launcher.leftovers(home)
    _, told, _ = typed(environ, "doctor", "-o", "json")
    found = {each["check"]: each for each in json.loads(told)["checks"]}
    port = found[f"port {environ['PILOTLIGHT_GATEWAY_PORT']}"]
    assert (port["level"], port["message"]) == ("ok", "held by the platform's gateway")
    os.kill(parent, signal.SIGCONT)
    for name in ("PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT"):
        environ[name] = "1"  # the ports that it was started with are kept, whatever is said elsewhere
    code, _, err = typed(environ, "down")
    assert code == 0, err
    assert not processes_of(home)


def test_down_ends_a_control_process_that_hangs(environ: dict[str, str], home: Home) -> None:
    assert typed(environ, "up")[0] == 0
    address = control_process_launcher.living(home)
    assert address is not None
    os.kill(address.pid, signal.SIGSTOP)
    code, _, err = typed(environ, "down")
    assert code == 0, err
    assert f"(pid {address.pid}) does not answer and is killed" in err
    assert not processes_of(home)


@pytest.mark.long
def test_up_starts_the_platform_when_whoever_had_its_place_leaves_it(environ: dict[str, str], home: Home) -> None:
    assert typed(environ, "up")[0] == 0
    address = control_process_launcher.living(home)
    assert address is not None
    os.kill(address.pid, signal.SIGSTOP)  # as one that is about to end: it answers nobody, and has the place
    for pid, command in commands_of(home):
        if "parent_process.py" in command:
            os.kill(pid, signal.SIGKILL)  # which would start another one
    coming = start(environ, "up", "-o", "json")
    while "another control process serves" not in (home.logs / "daemon.log").read_text():
        assert coming.poll() is None
        time.sleep(0.01)
    os.kill(address.pid, signal.SIGKILL)
    out, err = coming.communicate(timeout=100)
    assert coming.returncode == 0, err
    assert json.loads(out)["pid"] != address.pid
    assert typed(environ, "down")[0] == 0


def test_options_of_up_reach_the_platform_and_cannot_change_one_that_runs(environ: dict[str, str], home: Home) -> None:
    port = free_port()
    code, out, err = typed(environ, "up", "--gateway-port", str(port), "--prometheus", "http://127.0.0.1:9")
    assert (code, out) == (0, f"http://127.0.0.1:{port}\n"), err
    assert "--prometheus http://127.0.0.1:9" in (home.logs / "daemon.log").read_text()
    code, _, err = typed(environ, "up", "--api-port", "0")
    assert code == 2
    assert "platformctl down, then up again" in err
    assert typed(environ, "down")[0] == 0


def kill_control_and_parent(home: Home) -> None:
    address = control_process_launcher.living(home)
    assert address is not None
    (parent,) = [pid for pid, command in commands_of(home) if "parent_process.py" in command]
    os.kill(parent, signal.SIGKILL)
    os.kill(address.pid, signal.SIGKILL)
    assert control_process_launcher.wait_exit(address, 60)


def test_a_platform_that_was_killed_keeps_its_options_until_down(environ: dict[str, str], home: Home) -> None:
    certificate, key = Authority(home.root.parent).issue()
    address, port = f"0.0.0.0:{free_port()}", str(free_port())
    files = ("--tls-cert", str(certificate), "--tls-key", str(key))
    code, out, err = typed(environ, "up", "--gateway-port", port, "--https", address, *files, "--allowed-hosts", "a.b")
    assert (code, out) == (0, f"http://127.0.0.1:{port}\n"), err
    assert f"HTTPS is served at https://{address}\n" in err
    assert err.count("everyone who reaches it may use services without a token") == 1
    assert "keeps its options" not in err
    kill_control_and_parent(home)
    code, _, err = typed(environ, "scale", "nothing", "--to", "1")  # the first verb that starts the platform
    assert f"it keeps its options: --gateway-port {port}" in err
    assert f"--https {address} --tls-cert {certificate} --tls-key {key} --allowed-hosts a.b\n" in err
    kill_control_and_parent(home)
    code, out, err = typed(environ, "up", "--allowed-hosts", "c.d", "-o", "json")
    assert code == 0, err
    assert "a.b" not in err
    assert (json.loads(out)["https"], json.loads(out)["gateway"]) == (f"https://{address}", f"http://127.0.0.1:{port}")
    assert control_process_launcher.stored_options(home)["--allowed-hosts"] == "c.d"
    found = {each["check"]: each for each in json.loads(typed(environ, "doctor", "-o", "json")[1])["checks"]}
    assert found["https"]["level"] == "warn", "valid for an hour"
    assert found["https"]["message"].startswith(f"https://{address}, its certificate is valid until 20")
    assert typed(environ, "down")[0] == 0
    code, out, err = typed(environ, "up", "-o", "json")
    assert "https" not in json.loads(out)
    assert "keeps its options" not in err
    assert typed(environ, "down")[0] == 0


def test_options_of_the_last_start_are_kept_but_those_given_anew_and_of_systemd(home: Home) -> None:
    home.create()
    assert control_process_launcher.restart_flags(home, ()) == []
    module = ("python", "-m", "pilotlight.control_plane.daemon", "--home", str(home.root))
    flags = ("--api-port", "1", "--no-pilot-light", "--foreground", "--https", "h:2")
    control_process_launcher.record_restart_command(home, (*module, *flags))
    kept = control_process_launcher.restart_flags(home, ("--api-port", "3"))
    assert kept == ["--no-pilot-light", "--https", "h:2"]
    assert control_process_launcher.wait_restarted(home, 0) is None
    control_process_launcher.record_stopped(home)
    assert control_process_launcher.restart_flags(home, ()) == []


def test_the_options_of_https_are_checked_beside_the_kept_ones(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old, new = authority.issue("old"), authority.issue("new")
    stored = {"--https": "127.0.0.1:1", "--tls-cert": str(old[0]), "--tls-key": str(old[1])}
    given = {"https": None, "tls_cert": str(new[0]), "tls_key": str(new[1]), "tls_client_ca": None}
    check_https(given, stored)
    with pytest.raises(UsageError, match="--https is missing"):
        check_https(given, {})
    with pytest.raises(UsageError, match="no certificate with its key"):
        check_https({**given, "tls_key": None}, stored)


@dataclass
class Deployed:
    """Stand-in for the control process: services by name with the annotations of their manifests."""

    services: dict[str, dict[str, str]]

    def list(self, _: None) -> "Sequence[ServiceStatus]":
        return [ServiceStatus("default", name, 1, "Ready", "") for name in self.services]

    def live(self, key: tuple[str, str]) -> "Sequence[Manifest]":
        return [Manifest({"metadata": {}}), Manifest({"metadata": {"annotations": self.services[key[1]]}})]


@pytest.mark.parametrize(
    ("host", "client_ca", "services", "warned"),
    [
        ("0.0.0.0", "", {"a": {ANNOTATION_TOKENS: "0" * 64}, "b": {}}, True),
        ("0.0.0.0", "", {}, True),  # what is deployed later may have no token
        ("0.0.0.0", "", {"a": {ANNOTATION_TOKENS: "0" * 64}}, False),
        ("0.0.0.0", "ca.crt", {"a": {}}, False),
        ("[::1]", "", {"a": {}}, False),
        ("127.0.0.1", "", {"a": {}}, False),
    ],
)
def test_https_for_other_machines_is_warned_of_unless_every_service_has_tokens(
    host: str, client_ca: str, services: dict[str, dict[str, str]], warned: bool
) -> None:
    settings = HttpsSettings(f"{host}:8443", "tls.crt", "", client_ca)
    assert is_open(settings, cast(Any, Deployed(services))) is warned


def test_a_platform_that_cannot_start_names_all_ports_that_are_taken_and_leaves_no_process(
    environ: dict[str, str], home: Home
) -> None:
    home.create()
    (home.run / "output").mkdir()  # of an earlier platform with a replica, whose output the log writer had copied
    os.mkfifo(home.run / "output" / "default@iris@iris-1.ended")
    with socket.create_server(("127.0.0.1", 0)) as gateway, socket.create_server(("127.0.0.1", 0)) as api:
        ports = {"GATEWAY": str(gateway.getsockname()[1]), "API": str(api.getsockname()[1])}
        changed = {f"PILOTLIGHT_{name}_PORT": port for name, port in ports.items()}
        code, _, err = typed({**environ, **changed}, "up")
    assert code == 1
    for name, port in ports.items():
        message = rf"port {port} on 127\.0\.0\.1 is in use by \S+ \(pid {os.getpid()}\); stop it or choose another port"
        assert re.search(rf"{message} with up --{name.lower()}-port or PILOTLIGHT_{name}_PORT", err), err
    assert not processes_of(home)


def test_a_control_process_that_came_too_late_is_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find the place free after a quick `down`, and bring the platform back."""
    late: list[subprocess.Popen[bytes]] = []

    def start(home: Home, flags: tuple[str, ...]) -> "subprocess.Popen[bytes]":
        late.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        control_process_launcher.announce(home, 1, 2)
        return late[0]

    monkeypatch.setattr(control_process_launcher, "_start", start)
    monkeypatch.setattr(control_process_launcher, "answers", lambda _: True)
    home.create()
    control_process_launcher.token(home)
    assert control_process_launcher.ensure(home).pid == os.getpid()
    assert late[0].returncode == -signal.SIGTERM


def test_an_announcement_of_a_process_that_is_gone_is_not_believed(home: Home) -> None:
    home.create()
    control_process_launcher.token(home)
    said = control_process_launcher.announce(home, 1, 2)
    assert control_process_launcher.living(home) is not None
    home.address.write_text(home.address.read_text().replace(str(said.start_ticks), str(said.start_ticks + 1)))
    assert control_process_launcher.living(home) is None
    home.address.write_text("torn {")
    assert control_process_launcher.living(home) is None


def test_the_token_is_made_once_and_is_its_owners_alone(home: Home) -> None:
    home.create()
    first = control_process_launcher.token(home)
    assert control_process_launcher.token(home) == first
    assert len(first) >= 32
    assert home.token.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.root.glob("token*")] == ["token"]
