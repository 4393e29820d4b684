"""Attacks on the access rules of a service, at its predictor with the mounted file and at the gateway.

Rows 95 to 128 of the attack list, and H2, H6, W5, W6 and W11: no token, wrong ones, forged JWTs, other ways to the same
service, web pages and other users of the machine.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.eventually import eventually
from tests.onnx_models import write_identity
from tests.platform.gateway.linked import ask, in_loop, linked, route
from tests.serving import Answer, RunningServer, json_tensor

from pilotlight.gateway.routing_table import Replica
from pilotlight.wire.access_file import encode
from pilotlight.wire.service_access import Access, AccessRules, Jwt
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.protocols import serving_protocols

pytestmark = pytest.mark.security

GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
INFER = "/v2/models/small/infer"
KEY, STRANGER = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
PUBLIC = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "one", "alg": "RS256"}
JWT = Jwt(json.dumps({"keys": [PUBLIC]}), "https://issuer", "iris", scope="predict")
TOKEN, OTHER = "correct-horse", "battery-staple"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


RULES = AccessRules(Access((digest(TOKEN),), JWT))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def claims(**changed: Any) -> dict[str, Any]:
    now = time.time()
    said = {"iss": "https://issuer", "aud": "iris", "sub": "ada", "scope": "predict", "exp": now + 600, "nbf": now - 60}
    return {name: value for name, value in (said | changed).items() if value is not None}


def signed(key: Any = KEY, algorithm: str = "RS256", headers: dict[str, Any] | None = None, **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm, headers={"kid": "one"} | (headers or {}))


def by_hand(header: dict[str, Any], secret: bytes = b"") -> str:
    """A token whose header libraries would not write; signed with HMAC where there is a secret."""
    import hmac

    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims())]
    text = b".".join(parts)
    signature = hmac.new(secret, text, hashlib.sha256).digest() if secret else b""
    return b".".join([text, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


OWN_KEY = jwt.algorithms.RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True)
FORGED = {
    "alg none": by_hand({"alg": "none", "kid": "one"}),
    "alg None": by_hand({"alg": "NoNe", "kid": "one"}),
    "HS256 with the modulus": by_hand({"alg": "HS256", "kid": "one"}, PUBLIC["n"].encode()),
    "HS256 with the PEM": by_hand({"alg": "HS256", "kid": "one"}, PEM),
    "another key": signed(STRANGER),
    "RS384": signed(algorithm="RS384"),
    "PS256": signed(algorithm="PS256"),
    "no exp": signed(exp=None),
    "expired": signed(exp=time.time() - 60),
    "not yet valid": signed(nbf=time.time() + 600),
    "another issuer": signed(iss="https://evil"),
    "another audience": signed(aud="other"),
    "unknown kid": signed(headers={"kid": "../../dev/null"}),
    "jku": signed(STRANGER, headers={"jku": "https://evil/keys.json"}),
    "jwk": signed(STRANGER, headers={"jwk": OWN_KEY}),
    "crit": signed(headers={"crit": ["exp"], "b64": False}),
    "no signature": signed().rpartition(".")[0] + ".",
    "cut": signed()[:-4],
}
WRONG = {
    "none": {}, "wrong": bearer(OTHER), "its hash": bearer(digest(TOKEN)), "basic": {"Authorization": f"Basic {TOKEN}"},
    "no scheme": {"Authorization": TOKEN}, "empty": {"Authorization": "Bearer "}, "two": bearer(f"{OTHER}, {TOKEN}"),
    "prefix": bearer(TOKEN[:-1]), "case": bearer(TOKEN.upper()), "a header": {"X-Authorization": f"Bearer {TOKEN}"},
    "forwarded": {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
}  # fmt: skip


def swap(folder: Path, version: str, rules: AccessRules) -> None:
    """Write the volume of a Secret as the kubelet does: a link to a new folder replaces the old one."""
    (folder / version).mkdir()
    (folder / version / "access.json").write_text(encode(rules))
    (folder / "new").symlink_to(version)
    os.replace(folder / "new", folder / "..data")


class Guarded:
    """A predictor as in a pod: on all ports, with the rules mounted from a Secret."""

    def __init__(self, folder: Path) -> None:
        self.mount = folder / "mount"
        self.mount.mkdir()
        swap(self.mount, "one", RULES)
        (self.mount / "access.json").symlink_to("..data/access.json")
        write_identity(folder / "models", "small", "FP32")
        env = {"PILOTLIGHT_SERVICE": "small", "INFERENCE_ACCESS_FILE": str(self.mount / "access.json")}
        flags = ("--model-repository", str(folder / "models"), "--grpc-port", "0")
        self.server = RunningServer(folder, *flags, env=env)

    def infer(self, headers: dict[str, str], full: bool = False) -> Answer:
        return self.server.request("POST", INFER, json.dumps(GOOD).encode(), headers, full=full)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.server.stop()


def test_a_pod_that_is_called_directly_refuses_all_but_the_right_credentials(guarded: Guarded) -> None:
    for full in (False, True):
        for name, headers in WRONG.items():
            assert guarded.infer(headers, full).status == 401, name
        for token in (TOKEN, signed()):
            assert guarded.infer(bearer(token), full).status == 200
        assert guarded.infer(bearer(signed(scope="read")), full).status == 403


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_jwt_is_refused_by_the_predictor(guarded: Guarded, name: str) -> None:
    refused = guarded.infer(bearer(FORGED[name]))
    assert refused.status == 401
    assert FORGED[name] not in refused.body.decode()


def test_every_route_but_health_and_metrics_needs_the_token(guarded: Guarded) -> None:
    for protocol in serving_protocols():
        for each in protocol.routes:
            path = each.pattern.format(model="small", version=1, repository="r", name="n", region="n", file="n.js")
            status = guarded.server.request(each.method, path, b"").status
            opened = each.action in (Action.HEALTH, Action.METRICS)
            assert (status != 401) == opened, f"{each.method} {path}: {status}"
            if each.action is Action.ADMIN:  # a pod trusts neither loopback nor the service's clients with that
                assert guarded.server.request(each.method, path, b"", bearer(TOKEN)).status == 403, path
    metrics = f"http://127.0.0.1:{guarded.server.metrics_port}"
    assert subprocess.run(["curl", "-sf", f"{metrics}/metrics"], capture_output=True, timeout=60).returncode == 0
    assert subprocess.run(["curl", "-sf", f"{metrics}/status"], capture_output=True, timeout=60).returncode != 0


def test_spellings_of_a_path_and_upgrades_are_no_way_around(guarded: Guarded) -> None:
    paths = [
        "//v2/models/small/infer", "/v2/models/%73mall/infer", f"{INFER}/", f"/v2/health/ready/..{INFER}",
        f"/v2/health/live/%2e%2e{INFER}", f"{INFER}?token={TOKEN}", f"{INFER}?access_token={TOKEN}",
    ]  # fmt: skip
    for path in paths:
        assert guarded.server.request("POST", path, json.dumps(GOOD).encode()).status in {401, 404}, path
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "eA=="}
    assert guarded.server.request("GET", "/predict/stream", b"", upgrade).status == 401
    assert guarded.server.request("OPTIONS", INFER, b"").status in {401, 404, 405}


def test_grpc_asks_for_the_same_token(guarded: Guarded) -> None:
    def code(method: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined,no-any-return]
        return grpc.StatusCode.OK

    port = guarded.server.wait_for_event("grpc.listening")["grpc_port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(60)
        service = "/inference.GRPCInferenceService"
        for method in ("ModelInfer", "ServerMetadata", "RepositoryIndex"):
            assert code(f"{service}/{method}") == grpc.StatusCode.UNAUTHENTICATED, method
            wrong = ("authorization", f"Bearer {OTHER}")
            assert code(f"{service}/{method}", wrong) == grpc.StatusCode.UNAUTHENTICATED, method
        assert code(f"{service}/ServerMetadata", ("authorization", f"Bearer {TOKEN}")) == grpc.StatusCode.OK
        index = code(f"{service}/RepositoryIndex", ("authorization", f"Bearer {TOKEN}"))
        assert index == grpc.StatusCode.PERMISSION_DENIED
        assert code(f"{service}/ServerReady") == grpc.StatusCode.OK


def test_a_revoked_token_is_refused_within_seconds_and_without_a_restart(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    try:
        assert guarded.infer(bearer(TOKEN)).status == 200
        swap(guarded.mount, "two", AccessRules(Access((digest(OTHER),))))
        eventually(lambda: guarded.infer(bearer(TOKEN)).status == 401, "the old token is refused")
        assert guarded.infer(bearer(OTHER)).status == 200
        (guarded.mount / "..data").unlink()  # whatever happens to the volume, it does not open the service

        def reported() -> bool:
            assert guarded.infer({}).status == 401
            return any(line["event"] == "access" for line in guarded.server.log())

        eventually(reported, "the loss of the file is logged")
        assert guarded.infer(bearer(OTHER)).status == 200
    finally:
        guarded.server.stop()


@in_loop
async def test_the_gateway_refuses_the_same_and_every_other_way_in(tmp_path: Path, guarded: Guarded) -> None:
    async with linked(tmp_path) as made:
        behind = Replica("r1", guarded.server.port)
        other = route(behind, name="other", access=Access(("0" * 64,)))
        await made.publish(route(behind, hosts=("iris.example",), access=RULES.access), other)
        path = "/iris/v2/models/small"
        for name, headers in {**WRONG, **{name: bearer(token) for name, token in FORGED.items()}}.items():
            assert (await ask(made.port, path, headers)).status == 401, name
        for token in (TOKEN, signed()):
            assert (await ask(made.port, path, bearer(token))).status == 200
        assert (await ask(made.port, path, bearer(signed(scope="read")))).status == 403
        foreign = bearer(OTHER)
        paths = [
            "/other/../iris/v2", "/other/%2e%2e/iris/v2", "/other/..%2firis/v2", "//iris/v2", "/iris@canary/v2",
            "/iris@iris-1/v2", "/IRIS/v2", "/%69ris/v2", "/iris;x/v2", "/default/iris/v2",
        ]  # fmt: skip
        for around in paths:
            assert (await ask(made.port, around, foreign)).status in {400, 401, 404}, around
        for hint in ({"Host": "iris.example"}, {"X-Forwarded-Host": "iris.example"}, {"X-Pilotlight-Tag": "canary"}):
            assert (await ask(made.port, "/iris/v2", {**foreign, **hint})).status == 401, hint


@pytest.fixture
def by_hand_server(tmp_path: Path) -> Iterator[RunningServer]:
    write_identity(tmp_path / "models", "small", "FP32")
    server = RunningServer(tmp_path, "--model-repository", str(tmp_path / "models"), "--model-control-mode", "explicit")
    yield server
    server.stop()


STRANGERS = """
import http.client, os, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
b"x".decode("idna"), "x".encode("idna"), "x".encode("latin-1")
os.setuid(65534)
connection.request("POST", "/v2/repository/index", b"", {"Host": "localhost"})
print(connection.getresponse().status)
"""


def test_web_pages_and_other_users_of_the_machine_are_no_admins(by_hand_server: RunningServer) -> None:
    path = "/v2/repository/index"
    assert by_hand_server.post(path).status == 200
    for headers in ({"Host": "localhost:evil.com"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"},
                    {"Host": "evil.com"}, {"X-Forwarded-For": "127.0.0.1"}):  # fmt: skip
        for full in (False, True):
            assert by_hand_server.post(path, b"", headers, full=full).status == 403, headers
    for hidden in ("/v2/logging", "/api/profile?cmd=start"):  # an <img> of a web page
        assert by_hand_server.get(hidden, {"Sec-Fetch-Site": "cross-site"}).status == 403
    if os.geteuid() == 0:
        command = [sys.executable, "-c", STRANGERS, str(by_hand_server.port)]
        assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == "403"
