"""Who is let in: bearer tokens and JWTs, judged purely, and asked for on every way to a protected route."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.platform.gateway.linked import ask, in_loop, linked, replica, route

from pilotlight import jwt_verification
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.routing_table import Route
from pilotlight.jwt_verification import InvalidToken
from pilotlight.wire.access_file import decode, encode
from pilotlight.wire.service_access import Access, AccessRules, Jwt, Refusal, authenticate

NOW = 1_800_000_000.0
SECRET = "correct horse"
TOKENS = Access(tokens=(hashlib.sha256(b"other").hexdigest(), hashlib.sha256(SECRET.encode()).hexdigest().upper()))
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwks() -> str:
    """Two public keys, and a secret one for an algorithm that the rules do not allow."""
    one = jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True) | {"kid": "one", "alg": "RS256"}
    two = jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True) | {"kid": "two"}
    shared = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "shared", "alg": "HS256"}
    return json.dumps({"keys": [one, two, shared]})


RULES = Jwt(jwks(), issuer="https://issuer", audience="iris", scope="predict")


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    said = {
        "iss": "https://issuer", "aud": "iris", "sub": "ada", "scope": "read predict", "exp": NOW + 60, "nbf": NOW - 60,
    }  # fmt: skip
    said = {name: value for name, value in (said | claims).items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={"kid": kid} if kid else {})


def judged(authorization: str | None, access: Access | None) -> str | Refusal:
    headers = {} if authorization is None else {"authorization": authorization}
    return authenticate(access, "default/iris", headers, NOW)


def test_a_route_that_asks_for_nothing_lets_everybody_in() -> None:
    assert judged(None, None) == ""
    assert judged(None, Access()) == ""


def test_rules_that_services_share_are_checked_once_for_what_a_client_may_call(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    monkeypatch.setattr(jwt_verification, "verify", lambda token, *_: verified.append(token) or forged())

    def forged() -> None:
        raise InvalidToken("forged")

    routes = [Route("default", f"iris-{n}", access=Access(jwt=Jwt(jwks()))) for n in range(100)]
    allowed = AccessAdmission().allows({"authorization": "Bearer a.b.c"})
    assert list(filter(allowed, [*routes, Route("default", "open")])) == [Route("default", "open")]
    assert verified == ["a.b.c"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_known_token_passes_under_a_name_that_does_not_show_it(scheme: str) -> None:
    client = judged(f"{scheme} {SECRET}", TOKENS)
    assert isinstance(client, str)
    assert client.startswith("token:")
    assert SECRET not in client


@pytest.mark.parametrize(
    ("authorization", "error"),
    [(None, ""), ("", ""), ("Bearer", ""), ("Bearer ", ""), (f"Basic {SECRET}", ""), (SECRET, ""),
     ("Bearer wrong", "invalid_token"), (f"Bearer {SECRET}, x", "invalid_token"),
     (f"Bearer {hashlib.sha256(SECRET.encode()).hexdigest()}", "invalid_token"), ("Bearer \udcff", "invalid_token")],
)  # fmt: skip
def test_anything_else_is_asked_to_authenticate(authorization: str | None, error: str) -> None:
    refusal = judged(authorization, TOKENS)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 401
    challenge = refusal.headers["WWW-Authenticate"]
    assert challenge.startswith('Bearer realm="default/iris"')
    assert (f'error="{error}"' in challenge) == bool(error)


@pytest.mark.parametrize(
    "make",
    [lambda: signed(), lambda: signed(EC, "ES256", "two"), lambda: signed(EC, "ES256", None),
     lambda: signed(scope=None, scp=["predict"]), lambda: signed(nbf=None), lambda: signed(aud=["x", "iris"]),
     lambda: signed(exp=NOW - 5), lambda: signed(nbf=NOW + 5)],
    ids=["rsa", "ec", "no key id", "scp", "no nbf", "one of several audiences", "just expired", "nearly valid"],
)  # fmt: skip
def test_a_good_jwt_passes_as_its_subject(make: Callable[[], str]) -> None:
    assert judged(f"Bearer {make()}", Access(jwt=RULES)) == "subject:https://issuer:ada"


@pytest.mark.parametrize(
    ("claims", "caller"),
    [({"groups": ["search", "ads"]}, "search/ada"), ({"groups": "a/b"}, "a-b/ada"), ({}, "subject:https://issuer:ada")],
)
def test_a_claim_names_the_team_of_a_caller(claims: dict[str, Any], caller: str) -> None:
    rules = replace(RULES, team="groups")
    assert judged(f"Bearer {signed(**claims)}", Access(jwt=rules)) == caller
    assert decode(encode(AccessRules(Access(jwt=rules)))).access == Access(jwt=rules)


BAD = {
    "expired": (lambda: signed(exp=NOW - 60), "the token has expired"),
    "not yet valid": (lambda: signed(nbf=NOW + 60), "the token is not valid yet"),
    "no end": (lambda: signed(exp=None), "it lacks a required claim, such as exp"),
    "another audience": (lambda: signed(aud="other"), "it is meant for another audience"),
    "no audience": (lambda: signed(aud=None), "it lacks a required claim, such as exp"),
    "another issuer": (lambda: signed(iss="https://other"), "it has another issuer"),
    "another key": (lambda: signed(STRANGER), "its signature is wrong"),
    "a key nobody has": (lambda: signed(kid="three"), "it matches no key of the service"),
    "an algorithm beyond the rules": (lambda: signed(RSA, "RS512"), "it matches no key of the service"),
    "the algorithm of a shared secret": (
        lambda: signed(b"secret-secret-secret-secret-secret", "HS256", "shared"), "its algorithm is not allowed",
    ),
    "no signature": (lambda: signed("", "none"), "it matches no key of the service"),
    "cut off": (lambda: signed().rpartition(".")[0], "it is malformed"),
    "no token at all": (lambda: "a.b.c", "it is malformed"),
    "claims of other types": (lambda: signed(exp="soon"), "its claims are malformed"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reason"), BAD.values(), ids=BAD)
def test_a_bad_jwt_is_refused_with_the_reason(make: Callable[[], str], reason: str) -> None:
    refusal = judged(f"Bearer {make()}", Access(jwt=RULES))
    assert isinstance(refusal, Refusal)
    assert (refusal.status, 'error="invalid_token"' in refusal.headers["WWW-Authenticate"]) == (401, True)
    assert refusal.message.endswith(reason)


def test_a_jwt_without_the_scope_is_forbidden() -> None:
    refusal = judged(f"Bearer {signed(scope='read')}", Access(jwt=RULES))
    assert isinstance(refusal, Refusal)
    assert refusal.status == 403
    assert 'error="insufficient_scope", scope="predict"' in refusal.headers["WWW-Authenticate"]


def test_tokens_and_jwts_may_be_asked_for_side_by_side() -> None:
    both = Access(TOKENS.tokens, RULES)
    assert str(judged(f"Bearer {SECRET}", both)).startswith("token:")
    assert judged(f"Bearer {signed()}", both) == "subject:https://issuer:ada"
    assert isinstance(judged("Bearer wrong", both), Refusal)


@pytest.mark.parametrize("keys", ["", "[]", "{}", '{"keys": [{"kty": "RSA"}]}', "no json", "[" * 100_000])
def test_keys_that_cannot_be_read_let_nobody_in(keys: str) -> None:
    refusal = judged(f"Bearer {signed()}", Access(jwt=Jwt(keys)))
    assert isinstance(refusal, Refusal)
    assert refusal.status == 503
    assert "check pilotlight.dev/auth-jwt-jwks" in refusal.message


def test_without_the_library_the_refusal_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['jwt'] = None\n"
        "from pilotlight.wire.service_access import Access, Jwt, authenticate\n"
        "print(authenticate(Access(jwt=Jwt('{}')), 'a/b', {'authorization': 'Bearer x'}, 0.0))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "status=503" in said
    assert "install pilotlight[auth]" in said


WAYS = {
    "path": ("/default/iris/v2", {}),
    "short path": ("/iris/v2", {}),
    "tag in the path": ("/iris@canary/v2", {}),
    "revision in the path": ("/iris@iris-1/v2", {}),
    "tag header": ("/iris/v2", {"X-Pilotlight-Tag": "canary"}),
    "Host": ("/v2", {"Host": "iris.example"}),
    "WebSocket": ("/iris/ws", {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x"}),
}


@in_loop
async def test_every_way_to_a_protected_route_asks_for_the_token(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config, hosts=("iris.example",), access=TOKENS))
        for name, (path, headers) in WAYS.items():
            refused = await ask(made.port, path, headers)
            assert refused.status == 401, name
            assert refused.headers["www-authenticate"].startswith("Bearer"), name
            assert "needs a token" in refused.json()["error"], name
            assert (await ask(made.port, path, {**headers, "Authorization": f"Bearer {SECRET}"})).status == 200, name
        assert len(one.asked) == len(WAYS)


@in_loop
async def test_a_port_of_its_own_asks_as_well(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        assert await made.link.listen(["127.0.0.1:0/http"]) == ()
        own = int(made.link.addresses[-1].rpartition(":")[2].partition("/")[0])
        await made.publish(route(one.config, port=own, access=TOKENS))
        assert (await ask(own, "/v2")).status == 401
        assert (await ask(own, "/v2", {"Authorization": f"Bearer {SECRET}"})).status == 200


@in_loop
async def test_a_component_of_the_service_sends_the_key_of_the_route_in_place_of_a_token(tmp_path: Path) -> None:
    async with linked(tmp_path) as made, replica() as one:
        await made.publish(route(one.config, access=TOKENS, key="k3y"))
        assert (await ask(made.port, "/default/iris@k3y/v2")).status == 200
        for name in ("iris", "iris@", "iris@other", "iris@canary", "iris@k3y2"):
            assert (await ask(made.port, f"/default/{name}/v2")).status == 401, name
        await made.publish(route(one.config, access=TOKENS))  # a service of one component has no key
        assert (await ask(made.port, "/default/iris@/v2")).status == 401


def test_a_token_that_older_libraries_fail_on_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(_: str) -> None:
        raise RecursionError

    monkeypatch.setattr(jwt, "get_unverified_header", recurse)
    for check in (lambda: jwt_verification.verify("x", (), ("RS256",), "", ""), lambda: jwt_verification.key_id("x")):
        with pytest.raises(jwt_verification.InvalidToken, match="malformed"):
            check()
