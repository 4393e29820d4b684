"""Authentication of a request for a route: bearer tokens and JWTs. Pure: the time is an argument.

A route with `Access` denies by default, the same for HTTP, WebSocket, gRPC, tags, dedicated ports and Host names.
"""

import hashlib
import hmac
from collections.abc import Mapping

from pilotlight.gateway.claims import CannotVerify, Claims, InvalidToken, verify
from pilotlight.gateway.gate import ErrorResponse
from pilotlight.gateway.table import Jwt, Route

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
