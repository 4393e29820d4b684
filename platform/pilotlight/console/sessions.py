"""Who is logged in to the console, and for how long. Decisions only: the clock is an argument, secrets stay in memory.

A session has two halves, and every request shows both. The cookie is the browser's, which no script can read; the
proof is the page's, which no other page can read. A cookie goes to every port of a host: alone it opens nothing.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

LIFE_S: Final = 12 * 3600.0
IDLE_S: Final = 2 * 3600.0
TICKET_S: Final = 300.0
MOST: Final = 64  # of each; the oldest gives way


@dataclass(slots=True)
class Session:
    proof: bytes
    opened: float
    used: float

    def lives(self, now: float) -> bool:
        return now - self.opened < LIFE_S and now - self.used < IDLE_S


@dataclass(frozen=True, slots=True)
class Halves:
    """As they are given out, once; only their digests are kept."""

    cookie: str
    proof: str


@dataclass(slots=True)
class Sessions:
    """`now` is monotonic. Ended by the end of the process: whoever is logged in then logs in again."""

    _open: dict[bytes, Session] = field(default_factory=dict)
    _tickets: dict[bytes, float] = field(default_factory=dict)

    def ticket(self, now: float) -> str:
        """Stands for the token once and for some minutes: a link may be seen by others, in a list of processes."""
        made = secrets.token_urlsafe(32)
        _bound(self._tickets)
        self._tickets[_digest(made)] = now
        return made

    def enter(self, shown: str, token: str, now: float) -> Halves | None:
        """With the API's token, or with a ticket, which this uses up."""
        issued = self._tickets.pop(_digest(shown), None)
        fresh = issued is not None and now - issued < TICKET_S
        if not fresh and not hmac.compare_digest(shown.encode(), token.encode()):
            return None
        made = Halves(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._forget(now)
        _bound(self._open)
        self._open[_digest(made.cookie)] = Session(_digest(made.proof), now, now)
        return made

    def holds(self, cookie: str, proof: str, now: float) -> bool:
        """Whether both halves are of one session that lives; asking keeps it alive."""
        found = self._open.get(_digest(cookie))
        if found is None or not hmac.compare_digest(found.proof, _digest(proof)) or not found.lives(now):
            return False
        found.used = now
        return True

    def leave(self, cookie: str) -> None:
        self._open.pop(_digest(cookie), None)

    def _forget(self, now: float) -> None:
        self._open = {digest: each for digest, each in self._open.items() if each.lives(now)}


def _bound(kept: dict[bytes, Session] | dict[bytes, float]) -> None:
    while len(kept) >= MOST:
        kept.pop(next(iter(kept)))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()
