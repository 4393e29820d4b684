"""Tokens, JWTs, rate limits.

Verified claims of a JWT, by the keys of a route. Needs PyJWT, the extra `auth`.

Authentication of a request for a route: bearer tokens and JWTs. Pure: the time is an argument.

A route with `Access` denies by default, the same for HTTP, WebSocket, gRPC, tags, dedicated ports and Host names.

Rate limit per client: token buckets in bounded memory. Pure: the time is an argument.

Admission of requests: authentication, then the rate limit of the client.
"""

import hashlib
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.routing_table import Jwt, Rate, Route

CACHED_TOKENS: Final = 4096  # clients repeat their tokens, and a signature check costs more than the rest of a request
FORBIDDEN_ALGORITHMS: Final = frozenset({"none", ""})


class CannotVerify(Exception):
    """A token cannot be checked: a library is missing, or the route's JWKS is invalid."""


class InvalidToken(Exception):
    """The token is rejected; the message does not quote it."""


class Claims(NamedTuple):
    """`expires` and `not_before` are Unix times."""

    subject: str
    issuer: str
    scopes: frozenset[str]
    expires: float
    not_before: float


@lru_cache(CACHED_TOKENS)
def verify(token: str, rules: Jwt) -> Claims:
    """Check signature, algorithm, issuer and audience; the validity time is left to the caller.

    Raises InvalidToken and CannotVerify.
    """
    try:
        import jwt
    except ImportError:
        raise CannotVerify("this gateway cannot check JWTs; install pilotlight[auth]") from None
    allowed = [name for name in rules.algorithms if name.lower() not in FORBIDDEN_ALGORITHMS]
    options: Any = {
        "require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False,
        "verify_aud": bool(rules.audience), "verify_iss": bool(rules.issuer),
    }  # fmt: skip
    try:
        key = _key(token, rules)
        audience, issuer = rules.audience or None, rules.issuer or None
        claims = jwt.decode(token, key, algorithms=allowed, audience=audience, issuer=issuer, options=options)
        return _read(claims)
    except jwt.PyJWTError as error:
        raise InvalidToken(f"the token is not accepted: {_reason(error)}") from error
    except (TypeError, ValueError) as error:
        raise InvalidToken("the token is not accepted: its claims are malformed") from error


def _key(token: str, rules: Jwt) -> Any:
    """Return the key that the token names; it must be for the token's algorithm, against algorithm confusion."""
    import jwt

    header = jwt.get_unverified_header(token)
    key_id, algorithm = header.get("kid"), header.get("alg")
    keys = [key for key in _keys(rules.keys) if key_id is None or key.key_id == key_id]
    fitting = [key for key in keys if key.algorithm_name == algorithm]
    if not fitting or (key_id is None and len(fitting) > 1):
        raise jwt.InvalidKeyError("no key of the service fits it")
    return fitting[0]


@lru_cache(256)
def _keys(document: str) -> tuple[Any, ...]:
    import jwt

    try:
        return tuple(jwt.PyJWKSet.from_json(document).keys)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CannotVerify("its JWKS cannot be read; check pilotlight.dev/auth-jwt-jwks") from error


def _read(claims: dict[str, Any]) -> Claims:
    scopes = claims.get("scope", claims.get("scp", ()))
    words = scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]
    subject, issuer = str(claims.get("sub") or ""), str(claims.get("iss") or "")
    return Claims(subject, issuer, frozenset(words), float(claims["exp"]), float(claims.get("nbf", 0)))


def _reason(error: Exception) -> str:
    """Return a short reason, without the library's message, which may quote the token."""
    return {
        "InvalidSignatureError": "its signature is wrong",
        "InvalidAudienceError": "it is meant for another audience",
        "InvalidIssuerError": "its issuer is another one",
        "InvalidAlgorithmError": "its algorithm is not allowed here",
        "InvalidKeyError": "no key of the service fits it",
        "MissingRequiredClaimError": "it lacks a claim that is needed, such as exp",
    }.get(type(error).__name__, "it is malformed")


SCHEME = "bearer"


def authenticate(route: Route, headers: Mapping[str, str], now: float) -> str | ErrorResponse:
    """Return the client's subject, empty without authentication; or the error. `now` is Unix time."""
    access = route.access
    if access is None or not (access.tokens or access.jwt):
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != SCHEME or not token:
        return _unauthorized(route, f"{_name(route)} needs a token; send Authorization: Bearer …")
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    # All listed tokens are compared, in constant time: the duration must not reveal how close a guess is.
    if sum(hmac.compare_digest(digest, known.lower()) for known in access.tokens):
        return f"token:{digest[:16]}"
    if access.jwt is None:
        return _unauthorized(route, f"{_name(route)} does not know this token", "invalid_token")
    return _authenticate_jwt(route, access.jwt, token, now)


def _authenticate_jwt(route: Route, rules: Jwt, token: str, now: float) -> str | ErrorResponse:
    try:
        claims = verify(token, rules)
    except CannotVerify as error:
        return ErrorResponse(503, f"{_name(route)}: {error}")
    except InvalidToken as error:
        return _unauthorized(route, f"{_name(route)}: {error}", "invalid_token")
    problem = validity_problem(claims, now)
    if problem:
        return _unauthorized(route, f"{_name(route)}: {problem}", "invalid_token")
    if rules.scope and rules.scope not in claims.scopes:
        challenge = f'Bearer realm="{_name(route)}", error="insufficient_scope", scope="{rules.scope}"'
        message = f"{_name(route)} needs a token with the scope {rules.scope}"
        return ErrorResponse(403, message, {"WWW-Authenticate": challenge})
    return f"subject:{claims.issuer}:{claims.subject}" if claims.subject else ""


def validity_problem(claims: Claims, now: float, leeway_s: float = 10.0) -> str:
    """Return why the token is expired or not yet valid; empty: it is valid. Allows for clock skew."""
    if now >= claims.expires + leeway_s:
        return "the token has expired"
    return "the token is not valid yet" if now < claims.not_before - leeway_s else ""


def _unauthorized(route: Route, message: str, error: str = "") -> ErrorResponse:
    challenge = f'Bearer realm="{_name(route)}"' + (f', error="{error}"' if error else "")
    return ErrorResponse(401, message, {"WWW-Authenticate": challenge})


def _name(route: Route) -> str:
    return f"{route.namespace}/{route.name}"


CLIENTS: Final = 50_000


class RateLimiter:
    """Keeps the most recent clients; an evicted one starts with a full bucket."""

    def __init__(self, clients: int = CLIENTS) -> None:
        self._clients = clients
        self._filled: OrderedDict[Hashable, tuple[float, float]] = (
            OrderedDict()
        )  # client → requests left, at which time

    def acquire(self, client: Hashable, rate: Rate, now: float) -> float:
        """Take a token; return 0 if there was one, else the seconds until there is. `now` is monotonic."""
        capacity, per_second = float(rate.burst or rate.requests), rate.requests / rate.seconds
        left, at = self._filled.pop(client, (capacity, now))
        left = min(capacity, left + (now - at) * per_second)
        passes = left >= 1.0 - 1e-9
        self._filled[client] = (left - 1.0 if passes else left, now)
        if len(self._filled) > self._clients:
            self._filled.popitem(last=False)
        return 0.0 if passes else (1.0 - left) / per_second

    def refund(self, client: Hashable) -> None:
        """Return a token that was taken; the next `acquire` caps the bucket."""
        if client in self._filled:
            left, at = self._filled[client]
            self._filled[client] = (left + 1.0, at)


REASONS = {401: "unauthorized", 403: "forbidden", 429: "rate", 503: "unverifiable"}


class AccessAdmission:
    """`on_rejected` is called with the route and a short reason."""

    def __init__(
        self,
        on_rejected: Callable[[Route, str], None] = lambda route, reason: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_rejected, self._clock, self._wall = on_rejected, clock, wall
        self._limiter = RateLimiter()

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None:
        if route.access is None and route.rate is None:
            return None
        result = authenticate(route, headers, self._wall())
        error = result if isinstance(result, ErrorResponse) else self._limit(route, result or f"address:{peer}")
        if error is not None:
            self._on_rejected(route, REASONS[error.status])
        return error

    def _limit(self, route: Route, client: str) -> ErrorResponse | None:
        if route.rate is None:
            return None
        wait = self._limiter.acquire((route.namespace, route.name, client), route.rate, self._clock())
        if not wait:
            return None
        allowed = f"{route.rate.requests} requests in {route.rate.seconds:g} s"
        message = f"{route.namespace}/{route.name} allows each client {allowed}; try again in {math.ceil(wait)} s"
        return ErrorResponse(429, message, {"Retry-After": str(math.ceil(wait))})
