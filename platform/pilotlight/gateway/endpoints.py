"""Where the replicas of a component are, and which of them are well: what a router knows of its engines.

The embedded platform keeps files of them; in a cluster the DNS knows.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import MsgspecError, json

from pilotlight.contract import HTTP_PORT
from pilotlight.gateway.table import Replica

# Our predictor's, then what other engines have. A server that knows neither is well when it answers at all.
HEALTH_PATHS: Final = ("/v2/health/ready", "/health")
HEALTH_S: Final = 5.0
SERVICE_PORT: Final = 80  # of a Kubernetes Service


class EndpointFile:
    """`<folder>/<namespace>/<workload>.json`, a list of Replica; read again when it has been replaced."""

    def __init__(self, folder: Path, namespace: str, workload: str) -> None:
        self._path = folder / namespace / f"{workload}.json"
        self._stamp: tuple[int, int] | None = None
        self._known: tuple[Replica, ...] = ()

    async def find(self) -> tuple[Replica, ...]:
        """No file: no replica. One that cannot be read leaves things as they were."""
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


class EndpointNames:
    """The pods behind the workload's headless name; without one, its Service as a whole."""

    def __init__(self, namespace: str, workload: str) -> None:
        self._names = ((f"{workload}-pods.{namespace}", HTTP_PORT), (f"{workload}.{namespace}", SERVICE_PORT))
        self._known: tuple[Replica, ...] = ()

    async def find(self) -> tuple[Replica, ...]:
        """Names that nobody knows have no replicas; a resolver that fails leaves things as they were."""
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


async def healthy(replicas: Iterable[Replica]) -> set[str]:
    """Names of those that answer and say that they are ready."""
    asked = list(replicas)
    verdicts = await asyncio.gather(*(is_healthy(replica) for replica in asked))
    return {replica.id for replica, well in zip(asked, verdicts, strict=True) if well}


async def is_healthy(replica: Replica) -> bool:
    try:
        async with asyncio.timeout(HEALTH_S):
            for path in HEALTH_PATHS:
                status = await _status(replica, path)
                if status != 404:
                    return status == 200
            return True
    except (OSError, TimeoutError, ValueError, IndexError, asyncio.IncompleteReadError):
        return False


async def _status(replica: Replica, path: str) -> int:
    reader, writer = await asyncio.open_connection(replica.host, replica.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {replica.host}\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
