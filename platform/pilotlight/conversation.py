"""Blocking HTTP client for sequential requests to one address. Standard library only.

For canary probes, microservices and the CLI. Errors are those of the library (FAILURES, TimeoutError among them);
callers word their own messages.
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
class HttpReply:
    """`headers` have lower-case names; `seconds` from the first byte sent to the last one received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    reason: str = ""


class HttpClient:
    """Keep-alive HTTP client. `headers` are sent with every request."""

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
        """Connect before the first request, to tell a refused connection from a missing response."""
        self._connection.connect()

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> HttpReply:
        """Send a request; `path` is relative to the URL. After a failure the next request reconnects."""
        begin = time.monotonic()
        try:
            self._connection.request(method, self._path + path, body or None, {**self._headers, **(headers or {})})
            response = self._connection.getresponse()
            content = response.read()
        except FAILURES:
            self._connection.close()
            raise
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpReply(response.status, response_headers, content, time.monotonic() - begin, response.reason)
