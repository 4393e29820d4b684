"""What the gateway knows: where each service lives and who gets which share. Made by the control side, sent as JSON.

A table is complete: it replaces the one before it. Replicas that are missing from it get no further request and
finish those they have; a backend without replicas holds its requests until a later table brings one.
"""

from typing import Final

from msgspec import Struct, json

HOLD_LIMIT: Final = 1000


class Replica(Struct, frozen=True):
    """A process that is ready. `id` stays the same over its life, whatever else of it changes."""

    id: str
    port: int
    host: str = "127.0.0.1"
    grpc_port: int = 0


class Backend(Struct, frozen=True):
    """One revision. `weight` is its share in percent; 0: reached by one of its tags or its name only."""

    revision: str
    workload: str
    weight: int
    replicas: tuple[Replica, ...] = ()
    tags: tuple[str, ...] = ()
    concurrency: int = 0  # requests that one replica may have at a time; 0: no limit
    hold_s: float = 300.0  # how long a request waits for a replica
    hold_limit: int = HOLD_LIMIT  # how many may wait
    unavailable: str = ""  # why no replica will come (a model that cannot be loaded): requests are not held, but 503


class Jwt(Struct, frozen=True):
    """`keys` is a JWKS document as text; only the algorithms listed are believed."""

    keys: str
    issuer: str = ""
    audience: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    scope: str = ""  # that a token must have; empty: any


class Access(Struct, frozen=True):
    """Who may ask: bearer tokens, kept as SHA-256 in hex, or JWTs. Neither: everybody who reaches the port."""

    tokens: tuple[str, ...] = ()
    jwt: Jwt | None = None


class Rate(Struct, frozen=True):
    """Per client: the subject of its token, else its address."""

    requests: int
    seconds: float = 60.0
    burst: int = 0  # 0: as `requests`


class Route(Struct, frozen=True):
    """A service, or one workload behind it (`internal`: only processes of the platform itself may ask).

    They are told the `key` of an internal route and put it where a tag stands, `/{namespace}/{name}@{key}/…`. An
    address alone would let everybody past the tokens that the service asks for.
    """

    namespace: str
    name: str
    backends: tuple[Backend, ...] = ()
    hosts: tuple[str, ...] = ()
    port: int = 0  # of its own; 0: none
    grpc_port: int = 0
    timeout_s: float = 300.0  # from the first byte sent to a replica to the last byte of its answer
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
