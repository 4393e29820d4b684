"""HTTP requests to a service through the gateway. Standard library only."""

from collections.abc import Mapping

from pilotlight.conversation import FAILURES, HttpClient, HttpReply
from pilotlight.errors import PlatformError


class Gateway:
    """Client of one service. `url` is what `status` shows; `headers` are sent with every request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._headers = url, headers

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> HttpReply:
        client = HttpClient(self._url, timeout, self._headers)
        try:
            with client:
                return client.request(method, path, body, headers)
        except TimeoutError:
            raise PlatformError(f"no answer within {timeout:g} s", "give it longer: --timeout") from None
        except FAILURES as error:
            message = f"the gateway at {client.address} does not answer: {error!r}"
            raise PlatformError(message, "platformctl doctor says more") from error
