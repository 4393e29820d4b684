"""Authentication by JWTs of an OpenID provider, valid for the org in one of their claims.

Disabled unless an issuer is set. Signatures are verified with the provider's JWKS, which is fetched every 5 minutes,
and when a token names an unknown key, at most every 30 s. Needs PyJWT, the extra `auth`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pilotlight import jwt_verification
from pilotlight.errors import UsageError
from pilotlight.jwt_verification import InvalidToken, Keys
from pilotlight.wire.environments.install_command import install_command

JWKS_TTL_S: Final = 300.0
MIN_REFRESH_S: Final = 30.0
MAX_JWKS_BYTES: Final = 2**20
ALLOWED: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
SECURE: Final = ("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")


class OidcSettings(Struct, frozen=True):
    issuer: str
    audience: str
    jwks: str  # a URL, or the path of a file
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    org_claim: str = "org"
    leeway_s: float = 30.0


def settings(environ: Mapping[str, str]) -> OidcSettings | None:
    """Read PILOTLIGHT_API_OIDC_*; None where no issuer is set."""
    values = {
        name: environ.get(f"PILOTLIGHT_API_OIDC_{name.upper()}", "")
        for name in ("issuer", "audience", "jwks", "algorithms", "org_claim")
    }
    if not values["issuer"]:
        return None
    for name in ("audience", "jwks"):
        if not values[name]:
            raise UsageError(f"PILOTLIGHT_API_OIDC_{name.upper()} is missing, and PILOTLIGHT_API_OIDC_ISSUER is set")
    if "://" in values["jwks"] and not values["jwks"].startswith(SECURE):
        raise UsageError(f"PILOTLIGHT_API_OIDC_JWKS = {values['jwks']}, must be an https URL or a local path")
    algorithms = tuple(filter(None, values["algorithms"].replace(",", " ").split())) or ("RS256", "ES256")
    if wrong := sorted(set(algorithms) - ALLOWED):
        allowed = ", ".join(sorted(ALLOWED))
        raise UsageError(f"PILOTLIGHT_API_OIDC_ALGORITHMS has {', '.join(wrong)}, must be of {allowed}")
    return OidcSettings(values["issuer"], values["audience"], values["jwks"], algorithms, values["org_claim"] or "org")


class Oidc:
    """Verifier of tokens. `fetch` returns the text of the JWKS; one call at a time."""

    def __init__(self, settings: OidcSettings, fetch: Callable[[str], Awaitable[str]] | None = None) -> None:
        self._settings = settings
        self._fetch = fetch or fetch_jwks
        self._keys: dict[str, Any] = {}
        self._fetched_at = -JWKS_TTL_S
        self._lock = asyncio.Lock()

    async def org_of(self, token: str, now: float) -> str | None:
        """Return the org of a token; None: invalid. `now` is monotonic, for the JWKS; expiry is by the wall clock."""
        accepted = self._settings
        try:
            keys = await self._keys_of(jwt_verification.key_id(token) or "", now)
            claims = jwt_verification.verify(
                token, keys, accepted.algorithms, accepted.issuer, accepted.audience, leeway_s=accepted.leeway_s
            )
        except InvalidToken:
            return None
        org = claims.get(accepted.org_claim)
        return org if isinstance(org, str) and org else None

    async def _keys_of(self, kid: str, now: float) -> Keys:
        """Return the key with this id, none if it is unknown. Keys without ids are not supported."""
        async with self._lock:
            age = now - self._fetched_at
            if age >= JWKS_TTL_S or (kid not in self._keys and age >= MIN_REFRESH_S):
                self._fetched_at = now
                with suppress(OSError, ValueError):  # the old keys stay valid; TimeoutError is an OSError
                    keys = jwt_verification.parse_jwks(await self._fetch(self._settings.jwks))
                    self._keys = {key.key_id: key for key in keys if key.key_id}
            return (self._keys[kid],) if kid in self._keys else ()


async def fetch_jwks(location: str) -> str:
    """Read the JWKS from a file, or by HTTP without following redirects."""
    if "://" not in location:
        return await asyncio.to_thread(Path(location).read_text)
    from aiohttp import ClientError, ClientSession, ClientTimeout

    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=10), trust_env=True) as session,
            session.get(location, allow_redirects=False) as response,
        ):
            response.raise_for_status()
            return (await response.content.read(MAX_JWKS_BYTES)).decode()
    except ClientError as error:
        raise OSError(str(error)) from error


def from_environ(environ: Mapping[str, str]) -> Oidc | None:
    options = settings(environ)
    if options is None:
        return None
    try:
        import jwt  # noqa: F401 - fail at the start, not at the first request
    except ImportError:
        message = f"PILOTLIGHT_API_OIDC_ISSUER is set, but PyJWT is missing: {install_command('auth')}"
        raise UsageError(message) from None
    return Oidc(options)
