"""What control process and gateway say to each other on a unix socket: one JSON document a line, each way.

    control → gateway   Publish(table)      the whole table; answered by Applied(generation) once no request
                                            can reach a replica that the table lacks
                        Listen(addresses)   these sockets, sent along as descriptors, are the ones to serve, and no
                                            others; an address without a descriptor is bound by the gateway.
                                            Answered by Applied, with what could not be bound
                        Lend()              asks for the gateway's listeners: answered by Sockets with descriptors
                        Stop(drain_s)       finish what is in flight and end
    gateway → control   Hello(version, pid) first on every connection
                        Wake(...)           a request waits for a backend that has no replica; said at once
                        Report(...)         what happened since the last report, once a second while anything did
                        Unreachable(...)    a replica refused a connection, or closed it without an answer
                        Leaving()           it was told to end by a signal: tables are obeyed until it has

The gateway outlives the control process: it keeps its last table and waits for the next connection.
"""

from msgspec import Struct

from pilotlight.gateway.table import Table


class Publish(Struct, frozen=True, tag="publish"):
    table: Table


class Listen(Struct, frozen=True, tag="listen"):
    """Each `host:port/kind` with kind http or grpc; the n-th descriptor belongs to the n-th of `held`."""

    held: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()  # those of them that lead to every route; any other only to the route of its port


class Lend(Struct, frozen=True, tag="lend"):
    pass


class Stop(Struct, frozen=True, tag="stop"):
    drain_s: float = 30.0


class Hello(Struct, frozen=True, tag="hello"):
    version: str
    pid: int
    generation: int = 0


class Applied(Struct, frozen=True, tag="applied"):
    generation: int
    failed: tuple[str, ...] = ()  # addresses that could not be bound, each with its reason


class Sockets(Struct, frozen=True, tag="sockets"):
    held: tuple[str, ...] = ()


class Wake(Struct, frozen=True, tag="wake"):
    namespace: str
    name: str  # of the route
    revision: str
    waiting: int = 1


class BackendReport(Struct, frozen=True):
    """One backend over one interval. `concurrency` is the time average of waiting + in flight."""

    namespace: str
    name: str
    workload: str
    revision: str
    concurrency: float
    requests: int
    errors: int  # answers of 500 and above, and none at all
    waiting: int  # now
    in_flight: int  # now
    cold_starts: int = 0
    held_s: float = 0.0
    latencies: tuple[int, ...] = ()  # counts by contract.LATENCY_BUCKETS, the last one above all edges
    held: int = 0  # requests that had to wait before a replica took them; `held_s` is theirs
    refused: int = 0  # of `requests`: answered 503 by the gateway because no replica came or too many wait
    latency_s: float = 0.0  # summed over `requests`
    lost: int = 0  # of `errors`: answered 502 by the gateway because the replica ended without an answer


class Report(Struct, frozen=True, tag="report"):
    seconds: float
    backends: tuple[BackendReport, ...] = ()


class Unreachable(Struct, frozen=True, tag="unreachable"):
    replica: str
    reason: str


class Leaving(Struct, frozen=True, tag="leaving"):
    """A gateway that ends by itself: it accepts nothing more and its place is free for a successor."""


Order = Publish | Listen | Lend | Stop
Word = Hello | Applied | Sockets | Wake | Report | Unreachable | Leaving
