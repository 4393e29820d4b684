"""Sessions and login tickets of the console, in memory. The clock is an argument.

A session has two secrets, and every request needs both: a cookie, which no script can read, and a proof held by the
page, which no other page can read. The cookie alone is not enough, since browsers send it to every port of the host.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

SESSION_TTL_S: Final = 12 * 3600.0
IDLE_TIMEOUT_S: Final = 2 * 3600.0
TICKET_TTL_S: Final = 300.0
MAX_ENTRIES: Final = 64  # sessions, and tickets; the oldest is evicted


@dataclass(slots=True)
class Session:
    proof: bytes
    opened: float
    used: float

    def is_active(self, now: float) -> bool:
        return now - self.opened < SESSION_TTL_S and now - self.used < IDLE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class SessionSecrets:
    """Secrets of a new session, returned once; only their digests are stored."""

    cookie: str
    proof: str


@dataclass(slots=True)
class Sessions:
    """Open sessions and tickets; `now` is monotonic. They do not survive the process."""

    _open: dict[bytes, Session] = field(default_factory=dict)
    _tickets: dict[bytes, float] = field(default_factory=dict)

    def issue_ticket(self, now: float) -> str:
        """Return a one-time login ticket, for a link that other users may see in the process list."""
        ticket = secrets.token_urlsafe(32)
        _evict_oldest(self._tickets)
        self._tickets[_digest(ticket)] = now
        return ticket

    def log_in(self, credential: str, token: str, now: float) -> SessionSecrets | None:
        """Open a session with the API's token or with a ticket, which it uses up; None: wrong credential."""
        issued = self._tickets.pop(_digest(credential), None)
        valid = issued is not None and now - issued < TICKET_TTL_S
        if not valid and not hmac.compare_digest(credential.encode(), token.encode()):
            return None
        session = SessionSecrets(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._open = {digest: each for digest, each in self._open.items() if each.is_active(now)}
        _evict_oldest(self._open)
        self._open[_digest(session.cookie)] = Session(_digest(session.proof), now, now)
        return session

    def authenticate(self, cookie: str, proof: str, now: float) -> bool:
        """Return whether both secrets belong to one active session, and reset its idle timeout."""
        session = self._open.get(_digest(cookie))
        if session is None or not hmac.compare_digest(session.proof, _digest(proof)) or not session.is_active(now):
            return False
        session.used = now
        return True

    def log_out(self, cookie: str) -> None:
        self._open.pop(_digest(cookie), None)


def _evict_oldest(entries: dict[bytes, Session] | dict[bytes, float]) -> None:
    while len(entries) >= MAX_ENTRIES:
        entries.pop(next(iter(entries)))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()
