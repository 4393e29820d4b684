"""Bearer tokens of the control API: random, valid for one org and one day, stored as hashes.

A fast hash is enough: a token has 256 random bits and is looked up at every request. It is found by its hash, so
timing reveals nothing of the token.
"""

import hashlib
import hmac
import secrets
from typing import Final

from pilotlight.microservices.directory import Directory

TTL_S: Final = 24 * 3600.0


def issue(directory: Directory, org: str, key: str, now: float, ttl_s: float = TTL_S) -> tuple[str, float]:
    """Issue a token; return it and its expiry time. Expired tokens are deleted."""
    token, expires_at = secrets.token_urlsafe(32), now + ttl_s
    with directory.database.change(durable=True) as connection:
        connection.execute("DELETE FROM tokens WHERE expires_at <= ?", (now,))
        connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (digest(token), org, key, expires_at))
    return token, expires_at


def org_of(directory: Directory, token: str, now: float) -> str | None:
    """Return the org of a token; None: unknown, or it or its key has expired."""
    hashed = digest(token)
    sql = """SELECT t.hash, t.org, t.expires_at, k.expires_at FROM tokens t JOIN keys k ON k.id = t.key
        WHERE t.hash = ?"""
    for stored, org, expires_at, key_expires_at in directory.database.rows(sql, (hashed,)):
        in_time = now < expires_at and (key_expires_at is None or now < key_expires_at)
        if hmac.compare_digest(stored, hashed) and in_time:
            return str(org)
    return None


def digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
