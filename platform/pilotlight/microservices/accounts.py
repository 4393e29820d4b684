"""Keys of orgs: made by `platformctl api key create`, shown once, kept as slow hashes, asked for by a login.

A key carries its own id, so that one hash is computed for a login and not one for each key of the org. A login with an
id that nobody has costs as much as any other, and nothing tells which part of it was wrong.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices.directory import Directory
from pilotlight.microservices.records import check_org

# 16 MiB and some 50 ms a try: nothing for a login, much for somebody with a stolen file.
COST: Final = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 2**20, "dklen": 32}
SHAPE: Final = re.compile(r"plk-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
NOBODY: Final = b"\0" * 16
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PERIOD: Final = re.compile(r"([1-9][0-9]{0,8})([smhdw])")


class Key(Struct, frozen=True):
    """What may be shown of a key after it was made. Times are seconds since 1970."""

    id: str
    org: str
    created_at: float
    expires_at: float | None


class Kept(Struct, frozen=True):
    """What a login is held against; of a key that is not there, something that nothing fits."""

    id: str
    salt: bytes
    hash: bytes


def create(directory: Directory, org: str, now: float, lives_s: float | None) -> tuple[str, Key]:
    """The key itself, which is kept nowhere, and what is known of it from then on."""
    check_org(org)
    key = Key(secrets.token_hex(6), org, now, None if lives_s is None else now + lives_s)
    secret, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
    row = (key.id, org, salt, slow_hash(secret, salt), now, key.expires_at)
    with directory.database.change(durable=True) as connection:
        connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
    return f"plk-{key.id}-{secret}", key


def listed(directory: Directory, org: str = "") -> Sequence[Key]:
    sql = "SELECT id, org, created_at, expires_at FROM keys WHERE ? IN ('', org) ORDER BY org, created_at"
    return [Key(*row) for row in directory.database.rows(sql, (org,))]


def delete(directory: Directory, id: str) -> None:  # noqa: A002 - its name everywhere
    """With it go the tokens that were given for it."""
    with directory.database.change(durable=True) as connection:
        if not connection.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount:
            raise NotFound(f"no key has the id {id}", "platformctl api key list")


def sought(directory: Directory, org: str, shown: str, now: float) -> Kept:
    """What the shown key must fit; always something, so that every login is one comparison."""
    shape = SHAPE.fullmatch(shown)
    sql = "SELECT id, salt, hash FROM keys WHERE id = ? AND org = ? AND (expires_at IS NULL OR expires_at > ?)"
    rows = directory.database.rows(sql, (shape.group(1) if shape else "", org, now))
    return Kept(*rows[0]) if rows else Kept("", NOBODY, b"")


def fits(kept: Kept, shown: str) -> bool:
    """Slow on purpose: called in a thread."""
    shape = SHAPE.fullmatch(shown)
    made = slow_hash(shape.group(2) if shape else "", kept.salt)
    return hmac.compare_digest(made, kept.hash) and shape is not None


def slow_hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, **COST)


def period(written: str) -> float:
    """`90d` in seconds."""
    found = _PERIOD.fullmatch(written.strip())
    if found is None:
        raise UsageError(f"--expires = {written}, must be a number with s, m, h, d or w, such as 90d")
    return float(found.group(1)) * UNITS[found.group(2)]
