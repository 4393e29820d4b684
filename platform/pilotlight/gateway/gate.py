"""Who may pass: what the data plane asks before it reads a body, and the answer when it is no."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pilotlight.gateway.table import Route


class Refusal(NamedTuple):
    """An answer of the gateway's own: a status, one sentence and headers that go with it."""

    status: int
    message: str
    headers: Mapping[str, str] = {}


class Refused(Exception):
    """A request that no replica shall get; for those who wait on a lease."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Gate(Protocol):
    """Access and rate limits. `headers` have lower-case names; `peer` is the client's address."""

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> Refusal | None: ...


class OpenGate:
    """Admits everybody who reaches the port."""

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> Refusal | None:
        return None
