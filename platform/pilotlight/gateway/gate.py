"""Admission of requests to a route, decided before the body is read; the error response otherwise."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pilotlight.gateway.table import Route


class ErrorResponse(NamedTuple):
    """Response of the gateway itself: a status, a message of one sentence, and headers."""

    status: int
    message: str
    headers: Mapping[str, str] = {}


class RequestRejected(Exception):
    """A request that no replica will get, with the response for its client."""

    def __init__(self, response: ErrorResponse) -> None:
        super().__init__(response.message)
        self.response = response


class Admission(Protocol):
    """Access and rate limits. `headers` have lower-case names; `peer` is the client's address."""

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None: ...


class AllowAll:
    """Admits every request."""

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None:
        return None
