"""Access rules and rate limits of a service, from the annotations of its document and manifests. Pure.

An invalid annotation is refused: it must never mean open access.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.jwt_verification import parse_jwks
from pilotlight.k8s.names import (
    ACCESS_ANNOTATIONS,
    ANNOTATION_JWT_AUDIENCE,
    ANNOTATION_JWT_ISSUER,
    ANNOTATION_JWT_KEYS,
    ANNOTATION_JWT_SCOPE,
    ANNOTATION_JWT_TEAM,
    ANNOTATION_QUOTA,
    ANNOTATION_RATE,
    ANNOTATION_TOKENS,
)
from pilotlight.wire.access_file import TOKEN
from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.service_access import Access, AccessRules, Jwt, Rate, TokenQuota

_JWT_RULES: Final = (ANNOTATION_JWT_ISSUER, ANNOTATION_JWT_AUDIENCE, ANNOTATION_JWT_SCOPE, ANNOTATION_JWT_TEAM)
_RATE: Final = re.compile(r"(\d{1,9})/(\d{0,6})(s|m|h)", re.ASCII)
_QUOTA: Final = re.compile(r"\s*([1-9]\d{0,14})/1([md])\s*", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
SHOWN: Final = 40  # characters of a value in errors: a key set is long, and an unhashed token is a secret


def access(annotations: Mapping[str, str]) -> Access | None:
    """Return the access rules; None: no token is required."""
    tokens = _tokens(annotations)
    keys = annotations.get(ANNOTATION_JWT_KEYS, "")
    issuer, audience, scope, team = (annotations.get(name, "") for name in _JWT_RULES)
    jwt = Jwt(keys, issuer, audience, scope=scope, team=team) if keys else None
    return Access(tokens, jwt) if tokens or jwt else None


def rate(annotations: Mapping[str, str]) -> Rate | None:
    """Return the rate limit per client, such as `100/1m`: 100 requests per minute."""
    if ANNOTATION_RATE not in annotations:
        return None
    written = annotations[ANNOTATION_RATE]
    matched = _RATE.fullmatch(written)
    requests, time = (int(matched[1]), int(matched[2] or 1)) if matched else (0, 0)
    if matched is None or not requests or not time:
        raise _invalid(ANNOTATION_RATE, written, "must be requests per time such as 100/1m")
    return Rate(requests, float(time * _SECONDS[matched[3]]))


def quota(annotations: Mapping[str, str]) -> TokenQuota | None:
    """Return the token quota per caller, such as `20000/1m, 1000000/1d`: per minute, and per day."""
    if ANNOTATION_QUOTA not in annotations:
        return None
    written = annotations[ANNOTATION_QUOTA]
    matched = [_QUOTA.fullmatch(part) for part in written.split(",")]
    limits = {match[2]: int(match[1]) for match in matched if match is not None}
    if None in matched or len(limits) < len(matched):
        raise _invalid(ANNOTATION_QUOTA, written, "must be tokens per minute, per day or both: 20000/1m, 1000000/1d")
    return TokenQuota(limits.get("m", 0), limits.get("d", 0))


def rules(annotations: Mapping[str, str]) -> AccessRules:
    """Return the rules that the servers in pods enforce, after `check`; quotas are the gateway's."""
    return AccessRules(access(annotations), rate(annotations))


def check(annotations: Mapping[str, str], *, verifies: bool = True) -> None:
    """Raise PlatformError for invalid annotations, before anything is stored.

    `verifies`: tokens are to be verified by this installation, which needs PyJWT for JWTs.
    """
    unknown = [name for name in annotations if name not in ACCESS_ANNOTATIONS]
    if unknown:
        known = ", ".join(ACCESS_ANNOTATIONS)
        raise PlatformError(f"annotation {unknown[0]} is unknown; access annotations are {known}")
    _check_tokens(annotations)
    _check_jwt(annotations, verifies)
    rate(annotations)
    if quota(annotations) is not None and access(annotations) is None:
        problem = f"needs callers: {ANNOTATION_TOKENS} or {ANNOTATION_JWT_KEYS}"
        raise PlatformError(f"annotation {ANNOTATION_QUOTA} {problem}")


def _tokens(annotations: Mapping[str, str]) -> tuple[str, ...]:
    parts = (part.strip().rpartition("=") for part in annotations.get(ANNOTATION_TOKENS, "").split(","))
    return tuple(f"{name}{mark}{digest.lower()}" for name, mark, digest in parts if digest)


def _check_tokens(annotations: Mapping[str, str]) -> None:
    tokens = _tokens(annotations)
    invalid = [token for token in tokens if not TOKEN.fullmatch(token)]
    if ANNOTATION_TOKENS in annotations and (invalid or not tokens):
        # The value may be the token itself, so it is not repeated.
        hint = "printf %s TOKEN | sha256sum | cut -c1-64"
        message = f"annotation {ANNOTATION_TOKENS} must be SHA-256 in hex of each token, separated by commas"
        raise PlatformError(message, hint)


def _check_jwt(annotations: Mapping[str, str], verifies: bool) -> None:
    named = [key for key in _JWT_RULES if key in annotations]
    if ANNOTATION_JWT_KEYS not in annotations:
        if named:
            raise PlatformError(f"annotation {named[0]} needs {ANNOTATION_JWT_KEYS} with the signing keys")
        return
    if find_spec("jwt") is None:
        if not verifies:
            return
        raise PlatformError(
            f"annotation {ANNOTATION_JWT_KEYS}: this gateway cannot check JWTs; {install_command('auth')}"
        )
    written = annotations[ANNOTATION_JWT_KEYS]
    try:
        parse_jwks(written)
    except ValueError as error:
        raise _invalid(ANNOTATION_JWT_KEYS, written, 'must be a JWKS document, {"keys": […]}') from error


def _invalid(name: str, written: str, must: str) -> PlatformError:
    shown = written if len(written) <= SHOWN else f"{written[:SHOWN]}…"
    return PlatformError(f"annotation {name} = {shown}, {must}")
