"""Which port of a machine a microservice gets: the lowest of 8080 to 8199 that neither the registry nor anybody has.

`claimed` holds the port for whoever starts one: two that start at once would else choose the same, since a port is
bound, and an entry written, only when the platform has done its part.
"""

import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from pilotlight import contract
from pilotlight.errors import PlatformError, UsageError
from pilotlight.microservices.model import Entry
from pilotlight.microservices.platforms import ALIASES
from pilotlight.microservices.registry import Registry, locked

RANGE: Final = range(8080, 8200)
# The embedded platform's own, though it may not run at the moment.
KEPT: Final = frozenset({contract.GATEWAY_PORT, contract.API_PORT})
ELSEWHERE: Final = frozenset({"brev"})  # the port is one of the instance's: nothing can be bound here to try it


def taken(entries: Mapping[str, Entry], platform: str, instance_id: str | None = None) -> frozenset[int]:
    """By microservices of the same platform, and there of the same instance."""
    same = ALIASES.get(platform, platform)
    return frozenset(
        entry.host_port
        for entry in entries.values()
        if entry.host_port and ALIASES.get(entry.platform, entry.platform) == same
        and (same not in ELSEWHERE or entry.instance_id == instance_id)
    )  # fmt: skip


def candidates(used: frozenset[int]) -> Iterator[int]:
    return (port for port in RANGE if port not in used | KEPT)


def can_bind(port: int) -> bool:
    """Bound for real, on every address: what listens on one of them alone is found too."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def own_folder() -> Path:
    """In a folder that all may write to, so it is looked at first: a link or another user's would be a trap."""
    folder = Path(gettempdir()) / f"pilotlight-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PlatformError(f"{folder} is not this user's own folder, and ports are claimed in it", f"remove {folder}")
    return folder


@contextmanager
def claimed(
    registry: Registry, platform: str, wanted: int = 0, instance_id: str | None = None,
    bindable: Callable[[int], bool] = can_bind, folder: Path | None = None,
) -> Iterator[int]:  # fmt: skip
    """`wanted`: this port or none. What was claimed is free again afterwards, or in the registry.

    `folder` is where claims are held: the user's own of this machine, since ports are the machine's and whoever has
    another registry must not choose the same one.
    """
    free = bindable if platform not in ELSEWHERE else lambda _: True
    held = folder or own_folder()
    for port in [wanted] if wanted else candidates(taken(registry.read().entries, platform, instance_id)):
        name = f"{instance_id or platform}-{port}" if platform in ELSEWHERE else str(port)
        with locked(held / name.replace("/", "_"), wait=False) as mine:
            # The registry is read again: whoever held the port before may have written it there.
            if mine and port not in taken(registry.read().entries, platform, instance_id) and free(port):
                yield port
                return
    if wanted:
        raise UsageError(f"host_port = {wanted} is taken", "leave --host-port out: the lowest free one is chosen")
    raise PlatformError(f"no port of {RANGE[0]} to {RANGE[-1]} is free", "platformctl microservice list, then stop one")
