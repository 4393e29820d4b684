"""`platformctl api`: the same API as a program of its own, over a target that is asked in threads."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.embedded import FLOWER, IRIS, ROOT, Platform, inference_service
from tests.platform.microservices.api.conftest import PATIENCE_S
from tests.platform.microservices.api.test_oidc import ENV, published, token
from tests.platform.microservices.api.test_oidc import KEY as PROVIDER
from tests.ports import free_port

from pilotlight.errors import NotFound
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control_process_launcher import Address
from pilotlight.targets.target import Release

KEY = ("default", "iris")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("standalone")
    env = {"PILOTLIGHT_MICROSERVICE_REGISTRY": str(folder / "registry.json"), "PILOTLIGHT_PROMETHEUS": ""}
    with Platform(folder / "home", env) as made:
        yield made


@contextmanager
def serving(platform: Platform, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its address, once it answers."""
    command = [sys.executable, "-m", "platformctl", "api", "--target", "local", "--port", "0", *flags]
    log = platform.home.logs / "api.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, env={**platform.env, **(env or {})}, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, log.read_text()
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
        process.stdout.close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_services_are_worked_through_it_as_through_the_platform_itself(platform: Platform) -> None:
    with serving(platform) as address:
        through = LocalTarget(Address(0, 0, "", port_of(address), 0, token=platform.address.token))
        with pytest.raises(NotFound):
            through.status(KEY)
        document = inference_service("iris", "onnx", IRIS.as_uri(), least=1, most=2)
        platform.deploy(document)
        until = time.monotonic() + PATIENCE_S
        while through.status(KEY).phase != "Ready":
            assert time.monotonic() < until, through.status(KEY)
            time.sleep(0.1)
        assert [status.name for status in through.list(None)] == ["iris"]
        assert platform.ask("/iris/v2/models/iris/infer", FLOWER).status == 200
        assert through.live(KEY)
        (release,) = through.releases(KEY)
        assert isinstance(release, Release)
        assert through.scale(KEY, {"minReplicas": 1, "maxReplicas": 3}).overrides
        assert not through.scale(KEY, None).overrides
        assert list(through.events(KEY, follow=False)) == list(platform.target.events(KEY, follow=False))
        wanted: Any = {"follow": False, "previous": False, "replica": "", "tail": 2}
        lines = list(through.logs(KEY, **wanted))
        assert (len(lines), lines) == (2, list(platform.target.logs(KEY, **wanted)))
        assert through.canaries(None) == ()
        through.delete(KEY)
        platform.wait(lambda: not platform.target.list(None), "the service to be gone")


def test_it_cannot_end_the_platform_and_has_the_console_and_the_document(platform: Platform) -> None:
    with serving(platform) as address:
        connection = HTTPConnection("127.0.0.1", port_of(address), timeout=30)
        for path, status in (
            ("/healthz", 200),
            ("/console", 200),
            ("/api/v1/openapi.json", 200),
            ("/api/v1/docs", 200),
        ):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status in (status, 302, 308), path
            if path.endswith(".json"):
                paths = json.loads(body)["paths"]
                assert "/api/v1/shutdown" not in paths
                assert "/api/v1/login" in paths
        connection.request("POST", "/api/v1/shutdown", "{}", {"Authorization": f"Bearer {platform.address.token}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 404
        connection.request("GET", "/healthz", headers={"Host": "evil.example"})
        assert connection.getresponse().status == 403
        connection.close()
    assert platform.answers()


def test_it_serves_tls_with_a_token_of_the_operators_choice(platform: Platform, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length\n")
    flags = ("--host", "0.0.0.0", "--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(file))
    with serving(platform, *flags) as address:
        assert address.startswith("https://")
        context = ssl.create_default_context(cafile=str(authority.path))
        with closing(HTTPSConnection("localhost", port_of(address), timeout=30, context=context)) as connection:
            connection.request("GET", "/api/v1/services", headers={"Authorization": "Bearer a-token-of-some-length"})
            answer = connection.getresponse()
            assert (answer.status, type(json.loads(answer.read()))) == (200, list)
            connection.request("GET", "/healthz", headers={"Host": "api.example"})  # any name: it is not loopback's
            assert connection.getresponse().status == 200


def test_a_token_of_a_provider_opens_the_org_that_it_names(platform: Platform, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(published(("a", PROVIDER)))
    env = {**ENV, "PILOTLIGHT_API_OIDC_JWKS": str(keys)}
    shown = {"Authorization": f"Bearer {token()}"}
    with (
        serving(platform, env=env) as address,
        closing(HTTPConnection("127.0.0.1", port_of(address), timeout=30)) as connection,
    ):
        for path, status in (("orgs/acme/workspaces", 200), ("orgs/other/workspaces", 404), ("services", 401)):
            connection.request("GET", f"/api/v1/{path}", headers=shown)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status, path


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tls-cert", "CERT"), "--tls-key is missing"),
        (("--tls-cert", "KEY", "--tls-key", "CERT"), "no certificate with its key"),
        (("--token-file", "EMPTY"), "must be at least 16"),
    ],
)
def test_flags_that_cannot_work_are_told_at_once(
    platform: Platform, tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    cert, key = Authority(tmp_path).issue()
    (tmp_path / "empty").write_text("")
    files = {"CERT": str(cert), "KEY": str(key), "EMPTY": str(tmp_path / "empty")}
    command = [sys.executable, "-m", "platformctl", "api", "--target", "local", "--port", "0"]
    words = [files.get(word, word) for word in flags]
    done = subprocess.run([*command, *words], env=platform.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_one_process_serves_the_microservices_of_a_home(platform: Platform) -> None:
    def listed(port: int) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Authorization": f"Bearer {platform.address.token}"}
        connection.request("GET", "/api/v1/orgs/acme/experiments", headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    assert listed(platform.address.port)[0] == 200
    with serving(platform) as address:
        status, body = listed(port_of(address))
    assert (status, "another process already serves the microservices" in body) == (409, True)
    assert os.path.exists(platform.home.root / "microservices.lock")


def test_on_this_machine_the_embedded_platform_serves_it_at_the_port_that_was_asked_for(tmp_path: Path) -> None:
    ports = {"PILOTLIGHT_GATEWAY_PORT": "0", "PILOTLIGHT_SERVICE_PORTS": "0"}
    made, port = Platform(tmp_path / "home", {"PILOTLIGHT_PROMETHEUS": "", **ports}), free_port()

    def served(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "platformctl", *words]
        return subprocess.run(command, env=made.env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)

    try:
        for _ in range(2):  # it starts the platform, and finds it
            done = served("api", "--target", "local", "--port", str(port))
            assert (done.returncode, done.stdout) == (0, f"http://127.0.0.1:{port}\n"), done.stderr
            assert "the embedded platform serves this API itself" in done.stderr
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
    finally:
        assert served("down").returncode == 0


def test_keys_that_were_made_before_the_platform_ran_open_it(tmp_path: Path) -> None:
    """Keys and trainings in its file do not make the embedded platform serve microservices before it is asked to."""
    made = Platform(tmp_path / "home", {"PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json")})
    command = [sys.executable, "-m", "platformctl", "api", "key", "create", "acme"]
    done = subprocess.run(command, env=made.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    asked = json.dumps({"ngc_key": done.stdout.strip(), "ngc_org_name": "acme"})
    with (
        made,
        serving(made) as address,
        closing(HTTPConnection("127.0.0.1", port_of(address), timeout=30)) as connection,
    ):
        connection.request("POST", "/api/v1/login", asked)
        answer = connection.getresponse()
        assert (answer.status, "token" in json.loads(answer.read())) == (200, True)
