"""Another user of the machine, and web pages in a browser on it, against a running platform."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.embedded import FLOWER, Platform, serverless
from tests.ports import listens_on_tcp

from pilotlight.targets.local.supervisor.process_inspection import replica_processes
from pilotlight.wire import unix_socket

pytestmark = pytest.mark.security
SECRET = "correct horse"
TOKENS = f"    pilotlight.dev/auth-tokens-sha256: {hashlib.sha256(SECRET.encode()).hexdigest()}"
RATE = "    pilotlight.dev/rate-limit: 3/60s"
NOBODY = 65534
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "eHg="}
INFER = "/secret/v2/models/secret/infer"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """In a folder that every user may enter: what protects the home is its own mode."""
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-"))
    folder.chmod(0o755)
    try:
        with Platform(folder / "home", {"PILOTLIGHT_PILOT_LIGHT": "on"}) as running:
            running.deploy(serverless("secret", annotations=TOKENS))
            running.deploy(serverless("slowly", annotations=RATE))
            running.wait_phase("Ready", name="secret")
            running.wait_phase("Ready", name="slowly")
            yield running
    finally:
        shutil.rmtree(folder)


def as_nobody(attack: Callable[[], object]) -> object:
    """Run the attack in a fork with another uid; return its result, or the name of the error that it met."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                result = attack()
            except OSError as error:
                result = type(error).__name__
            os.write(writing, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def ask(port: int, path: str, headers: dict[str, str] | None = None, source: str = "127.0.0.1") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
    try:
        connection.request("POST", path, json.dumps(FLOWER), headers or {})
        reply = connection.getresponse()
        return reply.status, "" if reply.status == 101 else reply.read().decode()
    finally:
        connection.close()


def connect(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection, unix_socket.unix_address(path) as address:
        connection.connect(address)
    return "connected"


@needs_root
def test_another_user_reaches_no_replica_but_through_the_gateway(platform: Platform) -> None:
    sockets = sorted(platform.home.sockets.glob("*/*"))
    assert {path.name for path in sockets} >= {"8080", "8082"}
    for path in sockets:
        assert connect(path) == "connected"
        assert as_nobody(lambda path=path: connect(path)) == "PermissionError"
    assert as_nobody(lambda: ask(platform.gateway_port, INFER)[0]) == 401
    assert as_nobody(lambda: ask(platform.gateway_port, INFER, {"Authorization": f"Bearer {SECRET}"})[0]) == 200


def test_no_replica_listens_on_tcp(platform: Platform) -> None:
    pids = [pid for pid, _ in replica_processes(platform.home)]
    assert len(pids) >= 2
    assert not any(map(listens_on_tcp, pids))


@needs_root
def test_another_user_reads_and_drives_nothing_of_the_home(platform: Platform) -> None:
    home = platform.home
    for name in ("token", "state.db", "daemon.json", "daemon.command", "logs/daemon.log", "logs/gateway.log"):
        if (home.root / name).exists():
            assert as_nobody(lambda name=name: (home.root / name).read_bytes().hex()) == "PermissionError", name
    assert as_nobody(lambda: os.listdir(home.root)) == "PermissionError"
    assert as_nobody(lambda: connect(home.gateway_socket)) == "PermissionError"
    for pilot in home.run.glob("pilot-*.sock"):
        assert as_nobody(lambda pilot=pilot: connect(pilot)) == "PermissionError"
    pid = next(pid for pid, _ in replica_processes(home))
    assert as_nobody(lambda: Path(f"/proc/{pid}/environ").read_text()) == "PermissionError"
    assert as_nobody(lambda: os.kill(pid, 9)) == "PermissionError"
    api = platform.address.port
    assert as_nobody(lambda: ask(api, "/api/v1/shutdown")[0]) == 401
    page = as_nobody(lambda: ask(api, "/api/v1/scrape_targets")[0])
    assert page in (401, 405)


@needs_root
def test_a_home_that_another_user_has_prepared_is_refused(platform: Platform) -> None:
    planted = platform.home.root.parent / "planted"
    planted.mkdir()
    (planted / "token").write_text("his token")
    (planted / "token").chmod(0o666)
    os.chown(planted, NOBODY, NOBODY)
    for mode, owner, sentence in ((0o777, NOBODY, "belongs to uid 65534"), (0o777, 0, "is writable by other users")):
        os.chown(planted, owner, owner)
        planted.chmod(mode)
        for command in (
            ("-m", "platformctl", "up"), ("-m", "platformctl", "status", "iris"),
            ("-m", "pilotlight.control_plane.daemon", "--home", str(planted)),
        ):  # fmt: skip
            env = {**platform.env, "PILOTLIGHT_HOME": str(planted)}
            done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1, done.stderr
            assert sentence in done.stderr
            assert str(planted) in done.stderr
    assert sorted(each.name for each in planted.iterdir()) == ["token"]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
@pytest.mark.parametrize("upgrade", [{}, UPGRADE])
def test_a_web_page_of_another_site_gets_nothing(
    platform: Platform, headers: dict[str, str], upgrade: dict[str, str]
) -> None:
    admitted = {"Authorization": f"Bearer {SECRET}", **upgrade}
    for path in (INFER, "/secret/predict/stream", "/healthz", "/metrics"):
        status, text = ask(platform.gateway_port, path, {**admitted, **headers})
        assert (status, "--allowed-hosts" in text) == (403, True), path
    own = {"Host": "secret.default.localhost", "Origin": "http://localhost:3000", "Authorization": f"Bearer {SECRET}"}
    assert ask(platform.gateway_port, "/v2/models/secret/infer", own)[0] == 200


def test_every_loopback_address_has_the_same_allowance(platform: Platform) -> None:
    statuses = [
        ask(platform.gateway_port, "/slowly/v2/models/slowly/infer", source=f"127.0.0.{number}")[0]
        for number in range(1, 7)
    ]
    assert statuses == [200] * 3 + [429] * 3
