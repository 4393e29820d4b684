"""Access rules of a service and their enforcement: bearer tokens, JWTs, and a rate limit per client.

The gateway enforces the rules of its routes; the predictor and the router those of a mounted file (access_file.py).
Clocks are arguments. Standard library only; JWTs need PyJWT, the extra `auth`, which is imported at the first one.
"""

import hashlib
import hmac
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from pilotlight import jwt_verification
from pilotlight.jwt_verification import InvalidToken
from pilotlight.wire.token_bucket import TokenBuckets

CACHED_TOKENS: Final = 4096  # clients repeat their tokens, and a signature check costs more than the rest of a request
SCHEME: Final = "bearer"
LEEWAY_S: Final = 10.0  # of the validity time, for clock skew


@dataclass(frozen=True, slots=True)
class Jwt:
    """`keys` is a JWKS document as text; other algorithms than those listed are rejected."""

    keys: str
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    scope: str = ""  # required of a token; empty: any
    team: str = ""  # claim with the team of the caller; empty: none


@dataclass(frozen=True, slots=True)
class Access:
    """Accepted credentials: bearer tokens, as SHA-256 in hex, or JWTs. Neither: no authentication.

    A token may have the name of its caller before it, as in `search/ada=9f86…`; `search` is its team.
    """

    tokens: tuple[str, ...] = ()
    jwt: Jwt | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate limit per client: by the subject of its token, else by its address."""

    requests: int
    seconds: float = 60.0
    burst: int = 0  # 0: as `requests`

    @property
    def capacity(self) -> float:
        return float(self.burst or self.requests)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class TokenQuota:
    """Tokens of prompts and completions for each caller; 0: no limit."""

    per_minute: int = 0
    per_day: int = 0


class AccessRules(NamedTuple):
    access: Access | None = None
    rate: Rate | None = None


class Refusal(NamedTuple):
    """Response to a request that is not admitted: status, a message of one sentence, headers."""

    status: int
    message: str
    headers: Mapping[str, str] = {}


class CannotVerify(Exception):
    """A token cannot be checked: a library is missing, or the JWKS is invalid."""


class Claims(NamedTuple):
    """`expires` and `not_before` are Unix times."""

    subject: str
    issuer: str
    scopes: frozenset[str]
    expires: float
    not_before: float
    team: str = ""


def team_of(caller: str) -> str:
    """Return the team of a caller `team/name`; empty: it has none."""
    return "" if caller.startswith(("token:", "subject:")) else caller.partition("/")[0] if "/" in caller else ""


def authenticate(access: Access | None, realm: str, headers: Mapping[str, str], now: float) -> str | Refusal:
    """Return the name of the caller, empty without authentication; or the refusal. `now` is Unix time."""
    if access is None or not (access.tokens or access.jwt):
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != SCHEME or not token:
        return _unauthorized(realm, f"{realm} needs a token; send Authorization: Bearer …")
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # All listed tokens are compared, in constant time: the duration must not reveal how close a guess is.
    matching = [each for each in access.tokens if hmac.compare_digest(digest, each.rpartition("=")[2].lower())]
    if matching:
        return matching[0].rpartition("=")[0] or f"token:{digest[:16]}"
    if access.jwt is None:
        return _unauthorized(realm, f"this token is not valid for {realm}", "invalid_token")
    return _authenticate_jwt(access.jwt, realm, token, now)


def check_rate(buckets: TokenBuckets, rate: Rate, key: Hashable, realm: str, now: float) -> Refusal | None:
    """Take a token of the client's bucket; return the refusal if it is empty. `now` is monotonic."""
    wait = buckets.acquire(key, rate.capacity, rate.per_second, now)
    if not wait:
        return None
    allowed = f"{rate.requests} requests in {rate.seconds:g} s"
    message = f"{realm} allows each client {allowed}; try again in {math.ceil(wait)} s"
    return Refusal(429, message, {"Retry-After": str(math.ceil(wait))})


def _authenticate_jwt(rules: Jwt, realm: str, token: str, now: float) -> str | Refusal:
    try:
        claims = verify(token, rules)
    except CannotVerify as error:
        return Refusal(503, f"{realm}: {error}")
    except InvalidToken as error:
        return _unauthorized(realm, f"{realm}: {error}", "invalid_token")
    problem = validity_problem(claims, now)
    if problem:
        return _unauthorized(realm, f"{realm}: {problem}", "invalid_token")
    if rules.scope and rules.scope not in claims.scopes:
        challenge = f'Bearer realm="{realm}", error="insufficient_scope", scope="{rules.scope}"'
        return Refusal(403, f"{realm} needs a token with the scope {rules.scope}", {"WWW-Authenticate": challenge})
    if claims.team:
        return f"{claims.team}/{claims.subject}"
    return f"subject:{claims.issuer}:{claims.subject}" if claims.subject else ""


@lru_cache(CACHED_TOKENS)
def verify(token: str, rules: Jwt) -> Claims:
    """Return the claims of a token by the keys of a service; the validity time is left to the caller.

    Raises InvalidToken and CannotVerify.
    """
    try:
        claims = jwt_verification.verify(token, _keys(rules.keys), rules.algorithms, rules.issuer, rules.audience)
    except ImportError:
        raise CannotVerify("this server cannot check JWTs; install pilotlight[auth]") from None
    scopes = claims.get("scope", claims.get("scp", ()))
    subject, issuer = str(claims.get("sub") or ""), str(claims.get("iss") or "")
    teams = claims.get(rules.team) if rules.team else None
    team = str((teams[0] if isinstance(teams, list) and teams else teams) or "").replace("/", "-")
    try:
        words = scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]
        return Claims(subject, issuer, frozenset(words), float(claims["exp"]), float(claims.get("nbf", 0)), team)
    except (TypeError, ValueError) as error:
        raise InvalidToken("the token is not accepted: its claims are malformed") from error


@lru_cache(256)
def _keys(document: str) -> jwt_verification.Keys:
    try:
        return jwt_verification.parse_jwks(document)
    except ValueError as error:
        raise CannotVerify("its JWKS cannot be read; check pilotlight.dev/auth-jwt-jwks") from error


def validity_problem(claims: Claims, now: float) -> str:
    """Return why the token is expired or not yet valid; empty: it is valid. Allows for clock skew."""
    if now >= claims.expires + LEEWAY_S:
        return "the token has expired"
    return "the token is not valid yet" if now < claims.not_before - LEEWAY_S else ""


def _unauthorized(realm: str, message: str, error: str = "") -> Refusal:
    challenge = f'Bearer realm="{realm}"' + (f', error="{error}"' if error else "")
    return Refusal(401, message, {"WWW-Authenticate": challenge})
