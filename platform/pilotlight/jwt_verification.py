"""Verification of JSON Web Tokens with the keys of a JWKS, for routes of the gateway and logins of the control API.

Needs PyJWT, the extra `auth`, which is imported at the first use.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Keys = tuple[Any, ...]  # jwt.PyJWK
# Short reasons instead of the library's messages, which may quote the token.
_REASONS: Final = {
    "InvalidSignatureError": "its signature is wrong",
    "InvalidAudienceError": "it is meant for another audience",
    "InvalidIssuerError": "it has another issuer",
    "InvalidAlgorithmError": "its algorithm is not allowed",
    "InvalidKeyError": "it matches no key of the service",
    "MissingRequiredClaimError": "it lacks a required claim, such as exp",
}


class InvalidToken(Exception):
    """The token is rejected; the message does not quote it."""


def parse_jwks(document: str) -> Keys:
    """Return the keys of a JWKS document. Raises ValueError if it is malformed, ImportError without PyJWT."""
    import jwt

    try:
        return tuple(jwt.PyJWKSet.from_json(document).keys)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is not a JWKS document") from error


def verify(
    token: str, keys: Keys, algorithms: Sequence[str], issuer: str, audience: str, *, leeway_s: float | None = None
) -> Mapping[str, Any]:
    """Return the claims after checks of signature, algorithm, issuer and audience; an empty issuer or audience: any.

    `leeway_s`: check the validity time too, by the wall clock with this tolerance; None: it is left to the caller.
    Raises InvalidToken, also for a token without `exp`.
    """
    import jwt

    timed = leeway_s is not None
    options: Any = {
        "require": ["exp"], "verify_exp": timed, "verify_nbf": timed, "verify_iat": timed,
        "verify_aud": bool(audience), "verify_iss": bool(issuer),
    }  # fmt: skip
    allowed = [name for name in algorithms if name.lower() not in {"", "none"}]
    try:
        return jwt.decode(
            token, _key(token, keys), algorithms=allowed, audience=audience or None, issuer=issuer or None,
            leeway=leeway_s or 0.0, options=options,
        )  # fmt: skip
    except jwt.PyJWTError as error:
        reason = _REASONS.get(type(error).__name__, "it is malformed")
        raise InvalidToken(f"the token is not accepted: {reason}") from error
    except (TypeError, ValueError, RecursionError) as error:  # the last one of older PyJWT
        raise InvalidToken("the token is not accepted: its claims are malformed") from error


def key_id(token: str) -> str | None:
    """Return the id of the key that signed the token; None: it names none. Raises InvalidToken."""
    import jwt

    try:
        return jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, TypeError, ValueError, RecursionError) as error:
        raise InvalidToken("the token is not accepted: it is malformed") from error


def _key(token: str, keys: Keys) -> Any:
    """Return the key that the token names; it must be for the token's algorithm, against algorithm confusion."""
    import jwt

    header = jwt.get_unverified_header(token)
    name, algorithm = header.get("kid"), header.get("alg")
    candidates = [key for key in keys if name is None or key.key_id == name]
    fitting = [key for key in candidates if key.algorithm_name == algorithm]
    if not fitting or (name is None and len(fitting) > 1):
        raise jwt.InvalidKeyError("it matches no key of the service")
    return fitting[0]
