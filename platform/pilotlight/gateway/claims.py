"""What a JWT says, once its signature is proven by one of a route's keys. Needs PyJWT, the extra `auth`."""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight.gateway.table import Jwt

REMEMBERED: Final = 4096  # a client repeats its token, and proving a signature costs more than the rest of a request
NEVER: Final = frozenset({"none", ""})


class Unverifiable(Exception):
    """This gateway cannot judge: a library is missing, or the route's keys are unreadable."""


class Untrusted(Exception):
    """The token is not to be believed; its text says why without repeating it."""


class Claims(NamedTuple):
    """`expires` and `not_before` are seconds since 1970."""

    subject: str
    issuer: str
    scopes: frozenset[str]
    expires: float
    not_before: float


@lru_cache(REMEMBERED)
def verified(token: str, rules: Jwt) -> Claims:
    """Signature, algorithm, issuer and audience; times are left to whoever knows the time."""
    try:
        import jwt
    except ImportError:
        raise Unverifiable("this gateway cannot check JWTs; install pilotlight[auth]") from None
    allowed = [name for name in rules.algorithms if name.lower() not in NEVER]
    options: Any = {
        "require": ["exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False,
        "verify_aud": bool(rules.audience), "verify_iss": bool(rules.issuer),
    }  # fmt: skip
    try:
        key = _key(token, rules)
        audience, issuer = rules.audience or None, rules.issuer or None
        said = jwt.decode(token, key, algorithms=allowed, audience=audience, issuer=issuer, options=options)
        return _read(said)
    except jwt.PyJWTError as error:
        raise Untrusted(f"the token is not accepted: {_reason(error)}") from error
    except (TypeError, ValueError) as error:
        raise Untrusted("the token is not accepted: its claims are malformed") from error


def _key(token: str, rules: Jwt) -> Any:
    """The key that the token names; it must be made for the very algorithm that the token claims."""
    import jwt

    header = jwt.get_unverified_header(token)
    wanted, algorithm = header.get("kid"), header.get("alg")
    found = [key for key in _keys(rules.keys) if wanted is None or key.key_id == wanted]
    fitting = [key for key in found if key.algorithm_name == algorithm]
    if not fitting or (wanted is None and len(fitting) > 1):
        raise jwt.InvalidKeyError("no key of the service fits it")
    return fitting[0]


@lru_cache(256)
def _keys(document: str) -> tuple[Any, ...]:
    import jwt

    try:
        return tuple(jwt.PyJWKSet.from_json(document).keys)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Unverifiable("its JWKS cannot be read; check pilotlight.dev/auth-jwt-jwks") from error


def _read(said: dict[str, Any]) -> Claims:
    scopes = said.get("scope", said.get("scp", ()))
    words = scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]
    subject, issuer = str(said.get("sub") or ""), str(said.get("iss") or "")
    return Claims(subject, issuer, frozenset(words), float(said["exp"]), float(said.get("nbf", 0)))


def _reason(error: Exception) -> str:
    """Short and without the library's detail, which may quote the token."""
    return {
        "InvalidSignatureError": "its signature is wrong",
        "InvalidAudienceError": "it is meant for another audience",
        "InvalidIssuerError": "its issuer is another one",
        "InvalidAlgorithmError": "its algorithm is not allowed here",
        "InvalidKeyError": "no key of the service fits it",
        "MissingRequiredClaimError": "it lacks a claim that is needed, such as exp",
    }.get(type(error).__name__, "it is malformed")
