"""Bearer tokens of the control API: random, good for one org and one day, kept as hashes.

A fast hash is right here: a token has 256 random bits, and is looked up at every request. It is found by its hash, so
what an attacker could time is of the hash and not of the token.
"""

import hashlib
import hmac
import secrets
from typing import Final

from pilotlight.microservices.directory import Directory

LIFE_S: Final = 24 * 3600.0


def issue(directory: Directory, org: str, key: str, now: float, life_s: float = LIFE_S) -> tuple[str, float]:
    """The token and when it ends; those that have ended are forgotten meanwhile."""
    token, expires_at = secrets.token_urlsafe(32), now + life_s
    with directory.database.change(durable=True) as connection:
        connection.execute("DELETE FROM tokens WHERE expires_at <= ?", (now,))
        connection.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (digest(token), org, key, expires_at))
    return token, expires_at


def org_of(directory: Directory, token: str, now: float) -> str | None:
    """Whose token it is; None: nobody's, or it has ended, with its key or by itself."""
    made = digest(token)
    sql = """SELECT t.hash, t.org, t.expires_at, k.expires_at FROM tokens t JOIN keys k ON k.id = t.key
        WHERE t.hash = ?"""
    for kept, org, expires_at, key_expires_at in directory.database.rows(sql, (made,)):
        in_time = now < expires_at and (key_expires_at is None or now < key_expires_at)
        if hmac.compare_digest(kept, made) and in_time:
            return str(org)
    return None


def digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
