"""Annotations about tokens and rates, as the gateway is told of them; whatever could leave a door open is refused."""

import json

import pytest

from pilotlight.errors import PlatformError
from pilotlight.k8s.access_annotations import access, check, quota, rate
from pilotlight.wire.service_access import Access, Rate, TokenQuota

TOKENS, JWKS = "pilotlight.dev/auth-tokens-sha256", "pilotlight.dev/auth-jwt-jwks"
ISSUER, AUDIENCE, RATE = (
    "pilotlight.dev/auth-jwt-issuer",
    "pilotlight.dev/auth-jwt-audience",
    "pilotlight.dev/rate-limit",
)
QUOTA = "pilotlight.dev/token-quota"
DIGEST = "ab" * 32
KEYS = json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"}]})


def test_no_annotation_asks_for_nothing() -> None:
    check({})
    assert access({}) is None
    assert rate({}) is None


def test_tokens_keys_and_rates_are_passed_on() -> None:
    written = {TOKENS: f"{DIGEST}, {DIGEST.upper()[::-1]}", JWKS: KEYS, ISSUER: "https://issuer", AUDIENCE: "iris"}
    written["pilotlight.dev/auth-jwt-scope"] = "predict"
    check(written)
    found = access(written)
    assert found is not None
    assert found.tokens == (DIGEST, DIGEST[::-1])
    assert found.jwt is not None
    assert (found.jwt.keys, found.jwt.issuer, found.jwt.audience) == (KEYS, "https://issuer", "iris")
    assert found.jwt.scope == "predict"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("100/1m", Rate(100, 60)), ("5/s", Rate(5, 1)), ("1000/24h", Rate(1000, 86400)), ("2/30s", Rate(2, 30))],
)
def test_a_rate_is_requests_in_a_time(written: str, meant: Rate) -> None:
    assert rate({RATE: written}) == meant


def test_tokens_have_names_and_callers_have_quotas() -> None:
    written = {TOKENS: f"search/Ada={DIGEST.upper()}, {DIGEST}", QUOTA: "20000/1m, 1000000/1d"}
    check(written)
    assert access(written) == Access((f"search/Ada={DIGEST}", DIGEST))
    assert quota(written) == TokenQuota(20_000, 1_000_000)
    assert quota({**written, QUOTA: "5/1d"}) == TokenQuota(per_day=5)
    assert quota({}) is None


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"pilotlight.dev/auth-tokens": DIGEST}, "annotation pilotlight.dev/auth-tokens is unknown"),
        ({TOKENS: DIGEST, "pilotlight.dev/ratelimit": "1/s"}, "annotation pilotlight.dev/ratelimit is unknown"),
        ({TOKENS: ""}, f"annotation {TOKENS} must be SHA-256 in hex"),
        ({TOKENS: " , "}, f"annotation {TOKENS} must be SHA-256 in hex"),
        ({TOKENS: "secret"}, f"annotation {TOKENS} must be SHA-256 in hex"),
        ({TOKENS: f"{DIGEST},{DIGEST[1:]}"}, f"annotation {TOKENS} must be SHA-256 in hex"),
        ({JWKS: ""}, f"annotation {JWKS} = , must be a JWKS document"),
        ({JWKS: "https://issuer/keys"}, f"annotation {JWKS} = https://issuer/keys, must be a JWKS document"),
        ({JWKS: '{"keys": []}'}, f'annotation {JWKS} = {{"keys": []}}, must be a JWKS document'),
        ({ISSUER: "https://issuer"}, f"annotation {ISSUER} needs {JWKS}"),
        ({AUDIENCE: "iris"}, f"annotation {AUDIENCE} needs {JWKS}"),
        ({RATE: ""}, f"annotation {RATE} = , must be requests per time such as 100/1m"),
        ({RATE: "100"}, f"annotation {RATE} = 100, must be requests per time such as 100/1m"),
        ({RATE: "0/1m"}, f"annotation {RATE} = 0/1m, must be requests per time such as 100/1m"),
        ({QUOTA: "5/1m"}, f"annotation {QUOTA} needs callers: {TOKENS} or {JWKS}"),
        ({TOKENS: DIGEST, QUOTA: "5/1h"}, f"annotation {QUOTA} = 5/1h, must be tokens per minute, per day or both"),
        ({TOKENS: DIGEST, QUOTA: "5/1m, 6/1m"}, f"annotation {QUOTA} = 5/1m, 6/1m, must be tokens per minute"),
        ({TOKENS: DIGEST, "pilotlight.dev/token-quotas": "1/1m"}, "annotation pilotlight.dev/token-quotas is unknown"),
        ({TOKENS: f"a b={DIGEST}"}, f"annotation {TOKENS} must be SHA-256 in hex"),
        ({RATE: "5/0s"}, f"annotation {RATE} = 5/0s, must be requests per time such as 100/1m"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(PlatformError) as refused:
        check(annotations)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_a_token_that_was_not_hashed_is_not_repeated() -> None:
    with pytest.raises(PlatformError) as refused:
        check({TOKENS: "correct horse"})
    assert "correct horse" not in str(refused.value)
