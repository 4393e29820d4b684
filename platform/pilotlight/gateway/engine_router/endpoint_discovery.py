"""Endpoints of a router's engines: from files of the local platform, or in a cluster from DNS; their health."""

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import MsgspecError, json

from pilotlight.contract import HTTP_PORT
from pilotlight.gateway.routing_table import Replica
from pilotlight.wire.http_client import send_request

# Of our predictor, then of other engines. A server that has neither is healthy if it answers at all.
HEALTH_PATHS: Final = ("/v2/health/ready", "/health")
HEALTH_S: Final = 5.0
SERVICE_PORT: Final = 80  # of a Kubernetes Service


class EndpointFile:
    """`<folder>/<namespace>/<workload>.json`, a list of Replica; read again after it was replaced."""

    def __init__(self, folder: Path, namespace: str, workload: str) -> None:
        self._path = folder / namespace / f"{workload}.json"
        self._stamp: tuple[int, int] | None = None
        self._known: tuple[Replica, ...] = ()

    async def discover(self) -> tuple[Replica, ...]:
        """Return the replicas, none without a file; an unreadable file changes nothing."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._stamp:
                self._known = json.decode(self._path.read_bytes(), type=tuple[Replica, ...])
                self._stamp = stamp
        except FileNotFoundError:
            self._known, self._stamp = (), None
        except (OSError, MsgspecError):
            pass
        return self._known


class DnsEndpoints:
    """The pods behind the workload's headless Service; without one, its ClusterIP Service."""

    def __init__(self, namespace: str, workload: str, port: int = HTTP_PORT) -> None:
        self._names = ((f"{workload}-pods.{namespace}", port), (f"{workload}.{namespace}", SERVICE_PORT))
        self._known: tuple[Replica, ...] = ()

    async def discover(self) -> tuple[Replica, ...]:
        """Return the replicas, none for unknown names; a temporary DNS failure changes nothing."""
        for name, port in self._names:
            try:
                hosts = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except socket.gaierror as error:
                if error.errno == socket.EAI_AGAIN:
                    return self._known
                continue
            addresses = sorted({str(host[4][0]) for host in hosts})
            self._known = tuple(Replica(f"{address}:{port}", port, address) for address in addresses)
            return self._known
        self._known = ()
        return self._known


async def healthy_ids(replicas: Iterable[Replica]) -> set[str]:
    """Return the ids of the replicas that answer as ready."""
    candidates = list(replicas)
    results = await asyncio.gather(*(is_healthy(replica) for replica in candidates))
    return {replica.id for replica, ready in zip(candidates, results, strict=True) if ready}


async def is_healthy(replica: Replica) -> bool:
    try:
        async with asyncio.timeout(HEALTH_S):
            for path in HEALTH_PATHS:
                status = (await send_request(replica.host, replica.port, path)).status
                if status != 404:
                    return status == 200
            return True
    except (OSError, TimeoutError, ValueError):
        return False
