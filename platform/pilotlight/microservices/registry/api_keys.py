"""API keys and bearer tokens of orgs, stored as hashes.

A key contains its own id, so that a login computes one hash and not one for each key of the org. A login with an
unknown id takes as long as any other, and the error does not reveal which part was wrong.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pilotlight.errors import NotFound
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import check_org

# 16 MiB and about 50 ms per attempt: cheap for a login, expensive for brute force on a stolen file.
SCRYPT_COST: Final = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 2**20, "dklen": 32}
KEY_PATTERN: Final = re.compile(r"plk-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
DUMMY_SALT: Final = b"\0" * 16
TTL_S: Final = 24 * 3600.0  # of a token


class Key(Struct, frozen=True):
    """Metadata of a key. Times are seconds since 1970."""

    id: str
    org: str
    created_at: float
    expires_at: float | None


class KeyHash(Struct, frozen=True):
    """Salt and hash that a login is verified against; for an unknown key a dummy that never matches."""

    id: str
    salt: bytes
    hash: bytes


def create(store: OrgStore, org: str, now: float, ttl_s: float | None) -> tuple[str, Key]:
    """Create a key; return its value, which is shown once and not stored, and its metadata."""
    check_org(org)
    key = Key(secrets.token_hex(6), org, now, None if ttl_s is None else now + ttl_s)
    secret, salt = secrets.token_urlsafe(32), secrets.token_bytes(16)
    row = (key.id, org, salt, slow_hash(secret, salt), now, key.expires_at)
    with store.database.change(durable=True) as connection:
        connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", row)
    return f"plk-{key.id}-{secret}", key


def list_keys(store: OrgStore, org: str = "") -> Sequence[Key]:
    sql = "SELECT id, org, created_at, expires_at FROM keys WHERE ? IN ('', org) ORDER BY org, created_at"
    return [Key(*row) for row in store.database.rows(sql, (org,))]


def delete(store: OrgStore, id: str) -> None:  # noqa: A002 - its name everywhere
    """Delete a key with the tokens that were issued for it."""
    with store.database.change(durable=True) as connection:
        if not connection.execute("DELETE FROM keys WHERE id = ?", (id,)).rowcount:
            raise NotFound(f"no key has the id {id}", "platformctl api key list")


def find_key_hash(store: OrgStore, org: str, key: str, now: float) -> KeyHash:
    """Return the hash to verify the key against, a dummy if there is none: every login takes one comparison."""
    shape = KEY_PATTERN.fullmatch(key)
    sql = "SELECT id, salt, hash FROM keys WHERE id = ? AND org = ? AND (expires_at IS NULL OR expires_at > ?)"
    rows = store.database.rows(sql, (shape.group(1) if shape else "", org, now))
    return KeyHash(*rows[0]) if rows else KeyHash("", DUMMY_SALT, b"")


def verify(stored: KeyHash, key: str) -> bool:
    """Return whether the key matches. Slow on purpose: call it in a thread."""
    shape = KEY_PATTERN.fullmatch(key)
    computed = slow_hash(shape.group(2) if shape else "", stored.salt)
    return hmac.compare_digest(computed, stored.hash) and shape is not None


def slow_hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, **SCRYPT_COST)


def issue(store: OrgStore, org: str, key: str, now: float) -> tuple[str, float]:
    """Issue a token; return it and its expiry time. Expired tokens are deleted."""
    token, expires_at = secrets.token_urlsafe(32), now + TTL_S
    with store.database.change(durable=True) as connection:
        connection.execute("DELETE FROM tokens WHERE expires_at <= ?", (now,))
        connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (digest(token), org, key, expires_at))
    return token, expires_at


def org_of(store: OrgStore, token: str, now: float) -> str | None:
    """Return the org of a token; None: unknown, or it or its key has expired."""
    sql = """SELECT t.org FROM tokens t JOIN keys k ON k.id = t.key
        WHERE t.hash = ? AND t.expires_at > ? AND (k.expires_at IS NULL OR k.expires_at > ?)"""
    rows = store.database.rows(sql, (digest(token), now, now))
    return str(rows[0][0]) if rows else None


def digest(token: str) -> str:
    """Return the fast hash that a token is stored and looked up by; it has 256 random bits."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
