"""The console away from the control process: behind TLS, over a target that is asked in threads; and its verb."""

import hashlib
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from tests.embedded import FLOWER, Platform
from tests.platform.console.test_routes import Visitor

import pilotlight.console
from pilotlight.console.sessions import HEADER_PROOF

STATIC = Path(pilotlight.console.__file__).parent / "static"
# dist/uPlot.iife.min.js and dist/uPlot.min.css of the npm package uplot 1.6.32, by SHA-256
VENDORED = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
ASK = "/console/api/v1/namespaces/default/services/iris/ask/v2/models/iris"


class Alone:
    """`platformctl api --target local` with a certificate that only this test trusts."""

    def __init__(self, port: int) -> None:
        self.port, self.headers = port, {"Origin": f"https://127.0.0.1:{port}"}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[HTTPSConnection, Any]:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=60, context=trusting)
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {**self.headers, **headers})
        return connection, connection.getresponse()


def self_signed(host: str) -> bytes:
    """A key and its certificate, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return secret + builder.sign(key, hashes.SHA256()).public_bytes(pem)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, platform: Platform) -> Iterator[Alone]:
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    pem.write_bytes(self_signed("127.0.0.1"))
    command = ["api", "--target", "local", "--port", "0", "--tls-cert", str(pem), "--tls-key", str(pem)]
    process = subprocess.Popen(
        [sys.executable, "-m", "platformctl.main", *command], env=platform.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        yield Alone(int(process.stdout.readline().strip().rpartition(":")[2]))
        process.terminate()


def test_behind_tls_it_shows_services_of_any_target_and_its_cookie_is_secure(alone: Alone, platform: Platform) -> None:
    connection, answer = alone.ask("POST", "/console/api/login", {"token": platform.address.token})
    cookie, proof = answer.getheader("Set-Cookie"), json.loads(answer.read())["proof"]
    connection.close()
    assert "Secure" in cookie
    alone.headers |= {"Cookie": cookie.partition(";")[0], HEADER_PROOF: proof}
    connection, stream = alone.ask("GET", "/console/api/feed")
    assert stream.readline() == b"event: services\n"
    told = json.loads(stream.readline().removeprefix(b"data: "))
    assert "default/iris" in [row["id"] for row in told["changed"]]
    connection.close()
    connection, answer = alone.ask("POST", f"{ASK}/infer", FLOWER)
    assert json.loads(answer.read())["status"] == 200
    connection.close()


def test_the_verb_prints_a_link_that_logs_in_once(platform: Platform) -> None:
    command = [sys.executable, "-m", "platformctl.main", "console", "--no-open", "-o", "json"]
    told = json.loads(subprocess.run(command, env=platform.env, capture_output=True, check=True).stdout)
    address, _, ticket = told["url"].partition("#token=")
    assert address == told["console"] == f"http://127.0.0.1:{platform.address.port}/console"
    visitor = Visitor(platform.address.port)
    assert [visitor.enter(ticket), visitor.enter(ticket)] == [200, 401]


def test_dashboards_are_opened_by_a_link_that_logs_in(platform: Platform) -> None:
    command = [sys.executable, "-m", "platformctl.main", "dashboard", "canary", "--serve", "--no-open", "-o", "json"]
    told = json.loads(subprocess.run(command, env=platform.env, capture_output=True, check=True).stdout)
    ticket, _, page = told["url"].partition("#token=")[2].partition("/")
    assert page == "dashboards/canary"
    assert Visitor(platform.address.port).enter(ticket) == 200


def test_an_answer_is_never_served_as_what_it_claims_to_be(platform: Platform) -> None:
    visitor = Visitor(platform.address.port)
    visitor.enter(platform.address.token)
    status, told = visitor.ask("POST", ASK, X_Pilotlight_Method="GET")
    assert (status, visitor.answered["content-type"].partition(";")[0]) == (200, "application/json")
    assert json.loads(told["body"])["name"] == "iris"
    assert visitor.ask("POST", ASK, X_Pilotlight_Method="DELETE")[0] == 422
    assert visitor.ask("POST", f"{ASK}?revision=nobody")[0] == 404
    for up in ("..%2f..%2f..%2fmetrics", "%2e%2e/%2e%2e/metrics", "%252e%252e%252fmetrics", "..%5cmetrics"):
        status, told = visitor.ask("POST", f"{ASK}/{up}", X_Pilotlight_Method="GET")
        assert (status, "would leave the service" in told["error"]) == (400, True), up
    assert visitor.ask("POST", ASK.replace("/v2/", "/metrics/"))[0] in (401, 404)  # models, not the replica's own pages


def test_files_of_others_are_what_their_packages_have() -> None:
    found = {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in VENDORED}
    assert found == VENDORED
    assert "MIT License" in (STATIC / "uplot.LICENSE.txt").read_text()


def test_every_file_of_the_page_is_small_and_asks_nobody_else() -> None:
    files = sorted(file for file in STATIC.iterdir() if not file.name.startswith("uplot."))
    assert len(files) > 20
    for file in files:
        text = file.read_text()
        assert text.count("\n") <= 250, file.name
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(")), file.name
        foreign = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in foreign, file.name
        assert "https://" not in foreign, file.name
