"""Tokens, JWTs and rate limits of a service, on every way that leads to it; its neighbours stay open."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from tests import ipv6
from tests.embedded import FLOWER, Platform, serverless
from tests.ports import free_port

from pilotlight.errors import PlatformError

SECRET = "correct horse"
TOKENS = f"    pilotlight.dev/auth-tokens-sha256: {hashlib.sha256(SECRET.encode()).hexdigest()}"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "eHg="}

IPV6 = ipv6.available()
Ask = Callable[[dict[str, str]], int]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    flags = ("--service-ports", str(free_port()))
    with Platform(tmp_path_factory.mktemp("shared") / "home", flags=flags) as running:
        running.deploy(serverless(annotations=TOKENS))
        running.deploy(serverless("open"))
        running.wait_phase("Ready")
        running.wait_phase("Ready", "Standby", name="open")
        running.wait(lambda: "port" in running.status().urls, "its own port")
        yield running


def asked(host: str, port: int, path: str, headers: dict[str, str]) -> int:
    connection = HTTPConnection(host, port, timeout=60)
    connection.request("POST", path, json.dumps(FLOWER), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def ways(platform: Platform, name: str = "iris") -> dict[str, Ask]:
    """Every way to a service: what is asked with the headers that are given."""
    status = platform.status(name)
    gateway, own = platform.address.gateway_port, int(status.urls["port"].rpartition(":")[2])
    infer, revision = f"/v2/models/{name}/infer", status.revisions[0].name
    local = "127.0.0.1"
    return {
        "path": lambda headers: asked(local, gateway, f"/default/{name}{infer}", headers),
        "short path": lambda headers: asked(local, gateway, f"/{name}{infer}", headers),
        "tag": lambda headers: asked(local, gateway, f"/{name}@{revision}{infer}", headers),
        "tag header": lambda h: asked(local, gateway, f"/{name}{infer}", {"X-Pilotlight-Tag": revision, **h}),
        "Host": lambda h: asked(local, gateway, infer, {"Host": f"{name}.default.localhost", **h}),
        "own port": lambda headers: asked(local, own, infer, headers),
        "IPv6": lambda headers: asked("::1", gateway, f"/{name}{infer}", headers),
        "WebSocket": lambda headers: asked(local, gateway, f"/{name}/predict/stream", {**UPGRADE, **headers}),
        "metrics of the model": lambda headers: asked(local, gateway, f"/{name}/metrics", headers),
    }


WAYS = [
    "path", "short path", "tag", "tag header", "Host", "own port", "WebSocket", "metrics of the model",
    *(["IPv6"] if IPV6 else []),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_service_with_tokens_lets_nobody_in_without_one(platform: Platform, way: str) -> None:
    ask = ways(platform)[way]
    assert ask({}) == 401
    assert ask({"Authorization": "Bearer wrong"}) == 401
    assert ask({"Authorization": f"Bearer {SECRET}"}) not in (401, 403, 429)
    assert ways(platform, "open")[way]({}) not in (401, 403, 429)


def test_a_token_may_be_changed_without_a_new_revision(platform: Platform) -> None:
    before = platform.status().revisions[0].name
    digest = hashlib.sha256(b"another").hexdigest()
    platform.deploy(serverless(annotations=f"    pilotlight.dev/auth-tokens-sha256: {digest}"))
    ask = ways(platform)["path"]
    platform.wait(lambda: ask({"Authorization": "Bearer another"}) == 200, "the new token to hold")
    assert ask({"Authorization": f"Bearer {SECRET}"}) == 401
    assert platform.status().revisions[0].name == before
    platform.deploy(serverless(annotations=TOKENS))
    platform.wait(lambda: ask({"Authorization": f"Bearer {SECRET}"}) == 200, "the old one again")


def test_a_jwt_of_the_named_issuer_and_audience_is_let_in(platform: Platform) -> None:
    jwt = pytest.importorskip("jwt", reason="the auth extra is not installed")
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "one", "alg": "ES256"}
    rules = {
        "auth-jwt-jwks": json.dumps({"keys": [public]}),
        "auth-jwt-issuer": "https://me",
        "auth-jwt-audience": "us",
    }
    annotations = "\n".join(f"    pilotlight.dev/{name}: {json.dumps(value)}" for name, value in rules.items())
    platform.deploy(serverless("signed", annotations=annotations))
    platform.wait_phase("Ready", name="signed")

    def ask(**claims: Any) -> int:
        said = {"iss": "https://me", "aud": "us", "exp": time.time() + 60, **claims}
        token = jwt.encode(said, key, "ES256", headers={"kid": "one"})
        path = "/signed/v2/models/signed/infer"
        return asked("127.0.0.1", platform.address.gateway_port, path, {"Authorization": f"Bearer {token}"})

    assert ask() == 200
    assert ask(iss="https://you") == 401
    assert ask(aud="them") == 401
    assert ask(exp=time.time() - 60) == 401
    platform.target.delete(("default", "signed"))


def test_a_rate_counts_over_all_ways_of_one_client(platform: Platform) -> None:
    platform.deploy(serverless("paced", annotations="    pilotlight.dev/rate-limit: 2/1h"))
    platform.wait_phase("Ready", name="paced")
    platform.wait(lambda: "port" in platform.status("paced").urls, "its own port")
    found = ways(platform, "paced")
    assert [found["Host"]({}), found["own port"]({})] == [200, 200]
    assert {way: found[way]({}) for way in WAYS} == dict.fromkeys(WAYS, 429)  # ::1 is the same client as 127.0.0.1
    assert ways(platform, "open")["path"]({}) == 200
    refused = platform.ask("/paced/v2/models/paced/infer")
    assert 0 < int(refused.headers["retry-after"]) <= 1800
    platform.target.delete(("default", "paced"))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("pilotlight.dev/auth-tokens-sha256: secret", r'auth-tokens-sha256"\]: must be SHA-256 in hex of each token'),
        ("pilotlight.dev/auth-jwt-jwks: nonsense", r'auth-jwt-jwks"\]: = nonsense, must be a JWKS document'),
        ("pilotlight.dev/rate-limit: often", r'rate-limit"\]: = often, must be requests per time such as 100/1m'),
    ],
)
def test_an_annotation_that_makes_no_sense_is_refused_before_anything_changes(
    platform: Platform, annotation: str, message: str
) -> None:
    with pytest.raises(PlatformError, match=message):
        platform.deploy(serverless("odd", annotations=f"    {annotation}"))
    assert "odd" not in [status.name for status in platform.target.list(None)]
