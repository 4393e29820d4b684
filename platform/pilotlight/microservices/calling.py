"""One HTTP exchange with a running microservice, over the address that its platform gives. Blocking."""

import json
from collections.abc import Mapping

from pilotlight.conversation import FAILURES, Conversation
from pilotlight.errors import PlatformError


class AskingFailed(PlatformError):
    """The microservice answered with an error, or not at all (`status` 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def call(
    url: str, method: str, path: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> bytes:
    return exchange(url, method, path, body, timeout, headers)[1]


def exchange(
    url: str, method: str, path: str, body: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> tuple[Mapping[str, str], bytes]:
    sent = {"Content-Type": "application/json", **(headers or {})}
    try:
        with Conversation(url, timeout) as conversation:
            answer = conversation.ask(method, path, body, sent)
    except TimeoutError:
        raise AskingFailed(f"the microservice did not answer within {timeout:g} s") from None
    except FAILURES as error:
        raise AskingFailed(f"the microservice cannot be reached ({type(error).__name__})") from error
    if answer.status != 200:
        raise AskingFailed(_message(answer.body) or f"the microservice answered {answer.status}", answer.status)
    return answer.headers, answer.body


def _message(content: bytes) -> str:
    """Of an error in the shape of V2 or of OpenAI."""
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
