"""Verified claims of a JWT, by the keys of a route. Needs PyJWT, the extra `auth`."""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight.gateway.table import Jwt

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
