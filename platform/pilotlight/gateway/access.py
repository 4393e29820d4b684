"""Who asks, and whether a route lets them: bearer tokens and JWTs. Pure: the time is an argument.

A route with `Access` denies by default. The same judgement stands before every way in: HTTP, WebSocket, gRPC, tags, a
port of its own, a Host name.
"""

import hashlib
import hmac
from collections.abc import Mapping

from pilotlight.gateway.claims import Claims, Untrusted, Unverifiable, verified
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.table import Access, Jwt, Route

SCHEME = "bearer"


def judge(route: Route, headers: Mapping[str, str], now: float) -> str | Refusal:
    """The client's subject, empty for one that nobody asked; or why not. `now` is seconds since 1970."""
    access = route.access
    if access is None or not (access.tokens or access.jwt):
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != SCHEME or not token:
        return _unauthorized(route, f"{_name(route)} needs a token; send Authorization: Bearer …")
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
    if _listed(digest, access):
        return f"token:{digest[:16]}"
    if access.jwt is None:
        return _unauthorized(route, f"{_name(route)} does not know this token", "invalid_token")
    return _judge_jwt(route, access.jwt, token, now)


def _listed(digest: str, access: Access) -> bool:
    """All are compared, so that the time taken says nothing about which one was near."""
    return sum(hmac.compare_digest(digest, known.lower()) for known in access.tokens) > 0


def _judge_jwt(route: Route, rules: Jwt, token: str, now: float) -> str | Refusal:
    try:
        claims = verified(token, rules)
    except Unverifiable as error:
        return Refusal(503, f"{_name(route)}: {error}")
    except Untrusted as error:
        return _unauthorized(route, f"{_name(route)}: {error}", "invalid_token")
    problem = untimely(claims, now)
    if problem:
        return _unauthorized(route, f"{_name(route)}: {problem}", "invalid_token")
    if rules.scope and rules.scope not in claims.scopes:
        challenge = f'Bearer realm="{_name(route)}", error="insufficient_scope", scope="{rules.scope}"'
        message = f"{_name(route)} needs a token with the scope {rules.scope}"
        return Refusal(403, message, {"WWW-Authenticate": challenge})
    return f"subject:{claims.issuer}:{claims.subject}" if claims.subject else ""


def untimely(claims: Claims, now: float, leeway_s: float = 10.0) -> str:
    """Clocks of two machines differ by a little."""
    if now >= claims.expires + leeway_s:
        return "the token has expired"
    return "the token is not valid yet" if now < claims.not_before - leeway_s else ""


def _unauthorized(route: Route, message: str, error: str = "") -> Refusal:
    challenge = f'Bearer realm="{_name(route)}"' + (f', error="{error}"' if error else "")
    return Refusal(401, message, {"WWW-Authenticate": challenge})


def _name(route: Route) -> str:
    return f"{route.namespace}/{route.name}"
