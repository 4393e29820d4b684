"""Messages between control process and gateway over a unix socket: JSON lines, both ways.

    control → gateway   Publish(table)      the whole table; answered by Applied(generation) once no request
                                            can reach a replica that the table lacks
                        Listen(addresses)   the sockets to serve from now on, sent as descriptors; an address without
                                            a descriptor is bound by the gateway. Answered by Applied, with the
                                            addresses that could not be bound
                        Lend()              requests the gateway's listeners: answered by Sockets with descriptors
                        Stop(drain_s)       finish requests in flight and exit
    gateway → control   Hello(version, pid) first on every connection
                        Wake(...)           a request waits for a backend without replicas; sent immediately
                        Report(...)         counters since the last report, every second while there are requests
                        Unreachable(...)    a replica refused a connection, or closed it without an answer
                        Leaving()           it is exiting after a signal; tables are applied until then

The gateway outlives the control process: it continues with its last table and waits for a new connection.
"""

from msgspec import Struct

from pilotlight.gateway.table import Table


class Publish(Struct, frozen=True, tag="publish"):
    table: Table


class Listen(Struct, frozen=True, tag="listen"):
    """Each `host:port/kind` with kind http or grpc; the n-th descriptor belongs to the n-th of `held`."""

    held: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()  # addresses that serve all routes; any other serves the route of its port


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
    errors: int  # status 500 and above, and no response
    waiting: int  # now
    in_flight: int  # now
    cold_starts: int = 0
    held_s: float = 0.0
    latencies: tuple[int, ...] = ()  # counts by contract.LATENCY_BUCKETS, the last one above all edges
    held: int = 0  # requests that waited for a replica; `held_s` is their total time
    refused: int = 0  # of `requests`: answered 503 by the gateway because no replica came or the queue was full
    latency_s: float = 0.0  # summed over `requests`
    lost: int = 0  # of `errors`: answered 502 by the gateway because the replica closed the connection


class Report(Struct, frozen=True, tag="report"):
    seconds: float
    backends: tuple[BackendReport, ...] = ()


class Unreachable(Struct, frozen=True, tag="unreachable"):
    replica: str
    reason: str


class Leaving(Struct, frozen=True, tag="leaving"):
    """The gateway accepts no more connections; a successor may take over its folder."""


ControlMessage = Publish | Listen | Lend | Stop
GatewayMessage = Hello | Applied | Sockets | Wake | Report | Unreachable | Leaving
