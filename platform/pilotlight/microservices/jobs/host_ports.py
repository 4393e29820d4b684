"""Allocation of host ports: the lowest of 8080 to 8199 that is neither in the registry nor bound.

`claim_port` holds a file lock on the port during a start: concurrent starts would otherwise choose the same one, since
it is bound, and registered, only when the platform has started the microservice.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from pilotlight import contract
from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.registry.records import ALIASES, PLATFORMS, Entry, Job, platform_name
from pilotlight.microservices.registry.registry_file import Registry, file_lock
from pilotlight.targets.local.home_directory import own_folder

RANGE: Final = range(8080, 8200)
# Ports of the embedded platform, which may not be running.
RESERVED: Final = frozenset({contract.GATEWAY_PORT, contract.API_PORT})
MODULE: Final = "pilotlight_predictor"
LOOPBACK: Final = "127.0.0.1"


def used_ports(entries: Mapping[str, Entry], platform: str, instance_id: str | None = None) -> frozenset[int]:
    """Return the ports of microservices on the same platform, and on the same instance if it is remote."""
    name = ALIASES.get(platform, platform)
    return frozenset(
        entry.host_port
        for entry in entries.values()
        if entry.host_port and ALIASES.get(entry.platform, entry.platform) == name
        and (not of_instance(name) or entry.instance_id == instance_id)
    )  # fmt: skip


def of_instance(platform: str) -> bool:
    """Return whether a port belongs to an instance, so that it cannot be tried here."""
    return PLATFORMS[platform_name(platform)].ports == "instance"


def candidates(used: frozenset[int]) -> Iterator[int]:
    return (port for port in RANGE if port not in used | RESERVED)


def can_bind(port: int) -> bool:
    """Return whether the port can be bound on all addresses, which also detects a listener on a single one."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


@contextmanager
def claim_port(
    registry: Registry, platform: str, requested: int = 0, instance_id: str | None = None,
    bindable: Callable[[int], bool] = can_bind, folder: Path | None = None,
) -> Iterator[int]:  # fmt: skip
    """Yield a free port, locked inside the context; `requested`: this port or none.

    `folder` has the locks. The default is common to all registries of the user, since they share the machine's ports.
    """
    free = (lambda _: True) if of_instance(platform) else bindable
    locks = folder or own_folder(Path(gettempdir()) / f"pilotlight-ports-{os.getuid()}")
    for port in [requested] if requested else candidates(used_ports(registry.read().entries, platform, instance_id)):
        name = f"{instance_id or platform}-{port}" if of_instance(platform) else str(port)
        with file_lock(locks / name.replace("/", "_"), wait=False) as acquired:
            # Read the registry again: the previous holder of the lock may have registered the port.
            if acquired and port not in used_ports(registry.read().entries, platform, instance_id) and free(port):
                yield port
                return
    if requested:
        raise UsageError(f"host_port = {requested} is in use", "omit --host-port to use the lowest free port")
    raise PlatformError(f"no port of {RANGE[0]} to {RANGE[-1]} is free", "platformctl microservice list, then stop one")


def is_own(job: Job) -> bool:
    """Return whether the job runs the predictor, in any image."""
    return MODULE in job.command
