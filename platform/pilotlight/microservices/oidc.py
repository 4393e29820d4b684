"""Tokens of somebody else's login: a JWT of an OpenID provider, good for the org that one of its claims names.

Optional, and off unless an issuer is set. Signatures are proven by the provider's keys, which are fetched once and
again when a token names one that is not there, at most every half minute. Needs PyJWT, the extra `auth`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pilotlight.errors import UsageError

KEEP_S: Final = 300.0
AGAIN_S: Final = 30.0
LARGEST: Final = 2**20
ALLOWED: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
SECURE: Final = ("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")


class OidcSettings(Struct, frozen=True):
    issuer: str
    audience: str
    jwks: str  # an address, or the path of a file
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    org_claim: str = "org"
    leeway_s: float = 30.0


def settings(environ: Mapping[str, str]) -> OidcSettings | None:
    """PILOTLIGHT_API_OIDC_*; None where no issuer is set."""
    said = {
        name: environ.get(f"PILOTLIGHT_API_OIDC_{name.upper()}", "")
        for name in ("issuer", "audience", "jwks", "algorithms", "org_claim")
    }
    if not said["issuer"]:
        return None
    for name in ("audience", "jwks"):
        if not said[name]:
            raise UsageError(f"PILOTLIGHT_API_OIDC_{name.upper()} is missing, and PILOTLIGHT_API_OIDC_ISSUER is set")
    if "://" in said["jwks"] and not said["jwks"].startswith(SECURE):
        raise UsageError(f"PILOTLIGHT_API_OIDC_JWKS = {said['jwks']}, must be https, or a path of this machine")
    algorithms = tuple(filter(None, said["algorithms"].replace(",", " ").split())) or ("RS256", "ES256")
    if wrong := sorted(set(algorithms) - ALLOWED):
        allowed = ", ".join(sorted(ALLOWED))
        raise UsageError(f"PILOTLIGHT_API_OIDC_ALGORITHMS has {', '.join(wrong)}, must be of {allowed}")
    return OidcSettings(said["issuer"], said["audience"], said["jwks"], algorithms, said["org_claim"] or "org")


class Oidc:
    """`fetch` brings the text of the key set; it is asked by one caller at a time."""

    def __init__(self, given: OidcSettings, fetch: Callable[[str], Awaitable[str]] | None = None) -> None:
        self._given = given
        self._fetch = fetch or fetched
        self._keys: dict[str, Any] = {}
        self._fetched_at = -KEEP_S
        self._lock = asyncio.Lock()

    async def org_of(self, token: str, now: float) -> str | None:
        """None: not to be believed. `now` is monotonic, for the keys; a token's own times are of the wall clock."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")), now)
            if key is None or header.get("alg") not in self._given.algorithms:
                return None
            said = jwt.decode(
                token, key, algorithms=list(self._given.algorithms), audience=self._given.audience,
                issuer=self._given.issuer, leeway=self._given.leeway_s, options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
        except (jwt.PyJWTError, TypeError, ValueError):
            return None
        org = said.get(self._given.org_claim)
        return org if isinstance(org, str) and org else None

    async def _key(self, kid: str, now: float) -> Any:
        """Only by its id: a provider that turns its keys over names them."""
        async with self._lock:
            age = now - self._fetched_at
            if age >= KEEP_S or (kid not in self._keys and age >= AGAIN_S):
                await self._renew(now)
            return self._keys.get(kid)

    async def _renew(self, now: float) -> None:
        """Keys that are there stay good while their provider does not answer."""
        import jwt

        self._fetched_at = now
        try:
            found = jwt.PyJWKSet.from_json(await self._fetch(self._given.jwks))
        except (jwt.PyJWTError, OSError, ValueError, TypeError, AttributeError, TimeoutError):
            return
        self._keys = {key.key_id: key for key in found.keys if key.key_id}


async def fetched(where: str) -> str:
    """From a file, or over HTTP without following anybody elsewhere."""
    if "://" not in where:
        return await asyncio.to_thread(Path(where).read_text)
    from aiohttp import ClientError, ClientSession, ClientTimeout

    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=10), trust_env=True) as session,
            session.get(where, allow_redirects=False) as answer,
        ):
            answer.raise_for_status()
            return (await answer.content.read(LARGEST)).decode()
    except ClientError as error:
        raise OSError(str(error)) from error


def made(environ: Mapping[str, str]) -> Oidc | None:
    given = settings(environ)
    if given is None:
        return None
    try:
        import jwt  # noqa: F401 - said at the start, not at the first request
    except ImportError:
        raise UsageError("PILOTLIGHT_API_OIDC_ISSUER is set, and PyJWT is missing: install pilotlight[auth]") from None
    return Oidc(given)
