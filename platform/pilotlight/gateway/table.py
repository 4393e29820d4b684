"""Routing table of the gateway: routes, backends and their weights. Built by the control process, sent as JSON.

A table is complete and replaces the one before. Replicas missing from it get no new requests and finish those in
flight; a backend without replicas holds its requests until a later table has one.
"""

from typing import Final

from msgspec import Struct, json

HOLD_LIMIT: Final = 1000


class Replica(Struct, frozen=True):
    """A replica that is ready. `id` stays the same for its lifetime."""

    id: str
    port: int
    host: str = "127.0.0.1"
    grpc_port: int = 0


class Backend(Struct, frozen=True):
    """One revision. `weight` is its traffic share in percent; 0: reachable by its tags or its name only."""

    revision: str
    workload: str
    weight: int
    replicas: tuple[Replica, ...] = ()
    tags: tuple[str, ...] = ()
    concurrency: int = 0  # requests in flight per replica; 0: no limit
    hold_s: float = 300.0  # maximum time that a request is held
    hold_limit: int = HOLD_LIMIT  # maximum number of held requests
    unavailable: str = ""  # why no replica will come (a model that cannot be loaded): requests get 503 at once


class Jwt(Struct, frozen=True):
    """`keys` is a JWKS document as text; other algorithms than those listed are rejected."""

    keys: str
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    scope: str = ""  # required of a token; empty: any


class Access(Struct, frozen=True):
    """Accepted credentials: bearer tokens, as SHA-256 in hex, or JWTs. Neither: no authentication."""

    tokens: tuple[str, ...] = ()
    jwt: Jwt | None = None


class Rate(Struct, frozen=True):
    """Rate limit per client: by the subject of its token, else by its address."""

    requests: int
    seconds: float = 60.0
    burst: int = 0  # 0: as `requests`


class Route(Struct, frozen=True):
    """A service, or one workload behind it (`internal`: for processes of the platform only).

    Clients of an internal route send its `key` in place of a tag, `/{namespace}/{name}@{key}/…`. Without a key, any
    local process could bypass the authentication of the service.
    """

    namespace: str
    name: str
    backends: tuple[Backend, ...] = ()
    hosts: tuple[str, ...] = ()
    port: int = 0  # dedicated to this route; 0: none
    grpc_port: int = 0
    timeout_s: float = 300.0  # from the first byte sent to a replica to the last byte of its response
    access: Access | None = None
    rate: Rate | None = None
    internal: bool = False
    key: str = ""


class Table(Struct, frozen=True):
    generation: int = 0
    routes: tuple[Route, ...] = ()


def encode(table: Table) -> bytes:
    return json.encode(table)


def decode(raw: bytes) -> Table:
    return json.decode(raw, type=Table)
