"""Requests to a service through the gateway, as any client would send them. Standard library only."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from pilotlight.errors import PlatformError


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers` have lower-case names; `seconds` went by from the first byte sent to the last one received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


class Gateway:
    """One service. `url` is what `status` shows; `headers` go with every request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = urlsplit(url)
        self._headers = dict(headers or {})

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> Reply:
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.netloc, timeout=timeout)
        start = time.monotonic()
        try:
            connection.request(
                method, self._url.path.rstrip("/") + path, body or None, {**self._headers, **(headers or {})}
            )
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError:
            raise PlatformError(f"no answer within {timeout:g} s", "give it longer: --timeout") from None
        except (OSError, HTTPException) as error:
            message = f"the gateway at {self._url.netloc} does not answer: {error!r}"
            raise PlatformError(message, "platformctl doctor says more") from error
        finally:
            connection.close()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, told, content, time.monotonic() - start)
