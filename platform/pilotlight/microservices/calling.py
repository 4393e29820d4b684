"""One HTTP request to a running microservice, over the URL of its platform. Blocking."""

import json
from collections.abc import Mapping

from pilotlight.conversation import FAILURES, HttpClient
from pilotlight.errors import PlatformError


class InferenceFailed(PlatformError):
    """The microservice returned an error, or no response (`status` 0)."""

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
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    try:
        with HttpClient(url, timeout) as conversation:
            response = conversation.request(method, path, body, all_headers)
    except TimeoutError:
        raise InferenceFailed(f"the microservice did not answer within {timeout:g} s") from None
    except FAILURES as error:
        raise InferenceFailed(f"the microservice cannot be reached ({type(error).__name__})") from error
    if response.status != 200:
        raise InferenceFailed(
            _message(response.body) or f"the microservice answered {response.status}", response.status
        )
    return response.headers, response.body


def _message(content: bytes) -> str:
    """Return the message of an error body of V2 or OpenAI."""
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
