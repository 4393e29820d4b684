"""Requests to a service through the gateway, as any client would send them. Standard library only."""

from collections.abc import Mapping

from pilotlight.conversation import FAILURES, Conversation, Reply
from pilotlight.errors import PlatformError


class Gateway:
    """One service. `url` is what `status` shows; `headers` go with every request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._headers = url, headers

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> Reply:
        conversation = Conversation(self._url, timeout, self._headers)
        try:
            with conversation:
                return conversation.ask(method, path, body, headers)
        except TimeoutError:
            raise PlatformError(f"no answer within {timeout:g} s", "give it longer: --timeout") from None
        except FAILURES as error:
            message = f"the gateway at {conversation.address} does not answer: {error!r}"
            raise PlatformError(message, "platformctl doctor says more") from error
