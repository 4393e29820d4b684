"""Requests to one address, one after the other, as any client of a service sends them. Blocking; standard library only.

For probes of canaries, microservices and verbs. What it means that no answer came, each of them says in its own words:
failures are those of the library (FAILURES, TimeoutError among them).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

FAILURES: Final = (OSError, HTTPException)


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers` have lower-case names; `seconds` went by from the first byte sent to the last one received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    reason: str = ""


class Conversation:
    """On a connection that is kept for as long as the other side keeps it. `headers` go with every request."""

    def __init__(self, url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.address = parts.netloc.rpartition("@")[2]
        self._connection = kind(self.address, timeout=timeout_s)
        self._path, self._headers = parts.path.rstrip("/"), dict(headers or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def connect(self) -> None:
        """Ahead of the first request, for who has to tell that nobody listens from that nobody answers."""
        self._connection.connect()

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """`path` is below the path of the address. After a failure the next request begins with a new connection."""
        begin = time.monotonic()
        try:
            self._connection.request(method, self._path + path, body or None, {**self._headers, **(headers or {})})
            answer = self._connection.getresponse()
            content = answer.read()
        except FAILURES:
            self._connection.close()
            raise
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, told, content, time.monotonic() - begin, answer.reason)
