"""Admission of requests to a route: authentication by bearer token or JWT, then the rate limit of the client.

A route with `Access` denies by default, the same for HTTP, WebSocket, gRPC, tags, dedicated ports and Host names.
"""

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from pilotlight import jwt_verification
from pilotlight.gateway.proxy.responses import ErrorResponse
from pilotlight.gateway.routing_table import Jwt, Route
from pilotlight.jwt_verification import InvalidToken
from pilotlight.wire.token_bucket import TokenBuckets

CACHED_TOKENS: Final = 4096  # clients repeat their tokens, and a signature check costs more than the rest of a request
SCHEME: Final = "bearer"
REJECTION_REASONS: Final = {401: "unauthorized", 403: "forbidden", 429: "rate", 503: "unverifiable"}


class CannotVerify(Exception):
    """A token cannot be checked: a library is missing, or the route's JWKS is invalid."""


class Claims(NamedTuple):
    """`expires` and `not_before` are Unix times."""

    subject: str
    issuer: str
    scopes: frozenset[str]
    expires: float
    not_before: float


class AccessAdmission:
    """`on_rejected` is called with the route and a short reason."""

    def __init__(
        self,
        on_rejected: Callable[[Route, str], None] = lambda route, reason: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._on_rejected, self._clock, self._wall = on_rejected, clock, wall
        self._buckets = TokenBuckets()

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None:
        if route.access is None and route.rate is None:
            return None
        result = authenticate(route, headers, self._wall())
        error = result if isinstance(result, ErrorResponse) else self._limit(route, result or f"address:{peer}")
        if error is not None:
            self._on_rejected(route, REJECTION_REASONS[error.status])
        return error

    def _limit(self, route: Route, client: str) -> ErrorResponse | None:
        rate = route.rate
        if rate is None:
            return None
        key = (route.namespace, route.name, client)
        wait = self._buckets.acquire(key, rate.capacity, rate.per_second, self._clock())
        if not wait:
            return None
        allowed = f"{rate.requests} requests in {rate.seconds:g} s"
        message = f"{_name(route)} allows each client {allowed}; try again in {math.ceil(wait)} s"
        return ErrorResponse(429, message, {"Retry-After": str(math.ceil(wait))})


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


@lru_cache(CACHED_TOKENS)
def verify(token: str, rules: Jwt) -> Claims:
    """Return the claims of a token by the keys of a route; the validity time is left to the caller.

    Raises InvalidToken and CannotVerify.
    """
    try:
        claims = jwt_verification.verify(token, _keys(rules.keys), rules.algorithms, rules.issuer, rules.audience)
    except ImportError:
        raise CannotVerify("this gateway cannot check JWTs; install pilotlight[auth]") from None
    scopes = claims.get("scope", claims.get("scp", ()))
    subject, issuer = str(claims.get("sub") or ""), str(claims.get("iss") or "")
    try:
        words = scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]
        return Claims(subject, issuer, frozenset(words), float(claims["exp"]), float(claims.get("nbf", 0)))
    except (TypeError, ValueError) as error:
        raise InvalidToken("the token is not accepted: its claims are malformed") from error


@lru_cache(256)
def _keys(document: str) -> jwt_verification.Keys:
    try:
        return jwt_verification.parse_jwks(document)
    except ValueError as error:
        raise CannotVerify("its JWKS cannot be read; check pilotlight.dev/auth-jwt-jwks") from error


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
