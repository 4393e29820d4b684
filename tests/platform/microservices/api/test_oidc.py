"""JWTs of somebody else's login: believed only with the right key, algorithm, issuer, audience, time and org."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pilotlight.api.oidc import MIN_REFRESH_S, Oidc, OidcSettings, fetch_jwks, from_environ, settings
from pilotlight.errors import UsageError

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
GIVEN = OidcSettings("https://issuer.example", "pilotlight", "keys.json")
ENV = {
    "PILOTLIGHT_API_OIDC_ISSUER": GIVEN.issuer,
    "PILOTLIGHT_API_OIDC_AUDIENCE": "pilotlight",
    "PILOTLIGHT_API_OIDC_JWKS": "/keys.json",
}


def published(*keys: tuple[str, Any]) -> str:
    def one(kid: str, key: Any) -> dict[str, Any]:
        kind = (
            jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
        )
        alg = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
        return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "alg": alg}

    return json.dumps({"keys": [one(kid, key) for kid, key in keys]})


def token(key: Any = KEY, algorithm: str = "ES256", kid: str | None = "a", **claims: Any) -> str:
    usual = {"iss": GIVEN.issuer, "aud": "pilotlight", "exp": time.time() + 172_800, "org": "acme", **claims}
    said = {name: value for name, value in usual.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={} if kid is None else {"kid": kid})


def org_of(shown: str, given: OidcSettings = GIVEN) -> str | None:
    async def keys(_: str) -> str:
        return published(("a", KEY), ("r", RSA))

    return asyncio.run(Oidc(given, keys).org_of(shown, 0.0))


def test_a_token_of_the_provider_is_good_for_the_org_it_names() -> None:
    assert org_of(token()) == "acme"
    assert org_of(token(RSA, "RS256", "r")) == "acme"
    given = OidcSettings("https://issuer.example", "pilotlight", "keys.json", org_claim="tenant")
    assert org_of(token(org=None, tenant="beta"), given) == "beta"


@pytest.mark.parametrize(
    "shown",
    [
        token(OTHER),  # another key under the same name
        token(kid="b"),  # a key that nobody published
        token(kid=None),
        token(iss="https://elsewhere.example"),
        token(aud="somebody"),
        token(exp=time.time() - 600),
        token(exp=None),
        token(nbf=time.time() + 86_400),
        token(org=None),
        token(org=["acme"]),
        token(RSA, "RS384", "r"),  # not among the allowed algorithms
        jwt.encode({"iss": GIVEN.issuer, "aud": "pilotlight", "exp": time.time() + 600, "org": "acme"}, "", "none"),
        "a.b.c",
        "..",
    ],
)
def test_what_is_not_the_providers_is_not_believed(shown: str) -> None:
    assert org_of(shown) is None


def test_a_public_key_is_no_shared_secret() -> None:
    """The old trick: a signature by HMAC with the published key as its secret."""
    import base64
    import hashlib
    import hmac

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    said = {"iss": GIVEN.issuer, "aud": "pilotlight", "exp": int(time.time()) + 600, "org": "acme"}
    signed = f"{part({'alg': 'HS256', 'kid': 'a'})}.{part(said)}"
    mac = hmac.digest(published(("a", KEY)).encode(), signed.encode(), hashlib.sha256)
    assert org_of(f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}") is None


def test_keys_are_fetched_once_and_again_when_the_provider_turns_them_over() -> None:
    fetches = []
    keys = [("a", KEY)]

    async def source(where: str) -> str:
        fetches.append(where)
        return published(*keys)

    async def story() -> None:
        oidc = Oidc(GIVEN, source)
        assert [await oidc.org_of(token(), 0.0) for _ in range(3)] == ["acme"] * 3
        assert len(fetches) == 1
        keys.append(("b", OTHER))
        fresh = token(OTHER, kid="b")
        assert await oidc.org_of(fresh, 1.0) is None  # not asked again so soon, whoever sends what
        assert await oidc.org_of(fresh, MIN_REFRESH_S) == "acme"
        assert len(fetches) == 2

    asyncio.run(story())


def test_keys_stay_good_while_the_provider_does_not_answer() -> None:
    answers = [published(("a", KEY))]

    async def source(_: str) -> str:
        if not answers:
            raise OSError("no route")
        return answers.pop()

    async def story() -> None:
        oidc = Oidc(GIVEN, source)
        assert await oidc.org_of(token(), 0.0) == "acme"
        assert await oidc.org_of(token(), 10_000.0) == "acme"

    asyncio.run(story())


def test_keys_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(published(("a", KEY)))
    assert asyncio.run(fetch_jwks(str(file))) == file.read_text()


def test_without_an_issuer_there_is_none() -> None:
    assert from_environ({}) is None
    assert settings(ENV) == OidcSettings(GIVEN.issuer, "pilotlight", "/keys.json")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("AUDIENCE", "", "AUDIENCE is missing"),
        ("JWKS", "", "JWKS is missing"),
        ("JWKS", "http://issuer.example/keys", "must be an https URL"),
        ("ALGORITHMS", "HS256", "has HS256"),
        ("ALGORITHMS", "none", "has none"),
    ],
)
def test_a_setting_that_would_weaken_it_is_refused(name: str, value: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        settings({**ENV, f"PILOTLIGHT_API_OIDC_{name}": value})
