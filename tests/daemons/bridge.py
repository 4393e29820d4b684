"""A network bridge of a test run's own, for a Docker daemon that publishes ports. It leads nowhere else."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.daemons.availability import Unavailable

NETWORK = "10.199.{}.1/24"
LOCK = Path(tempfile.gettempdir()) / "pilotlight-test-bridges"
_numbers = count()


@contextmanager
def bridge() -> Iterator[str]:
    """Its name. Its addresses are none that this machine has elsewhere, not for other runs either."""
    name = f"pl{os.getpid():x}-{next(_numbers)}"
    _ip("link", "add", name, "type", "bridge")
    try:
        with open(LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _ip("address", "add", free_network(_ip("-oneline", "-4", "address")), "dev", name)
        _ip("link", "set", name, "up")
        yield name
    finally:
        _ip("link", "delete", name)


def free_network(addresses: str) -> str:
    """Begins where the process id says, for runs that do not see each other's locks."""
    numbers = ((os.getpid() + step) % 256 for step in range(256))
    return next(network for network in map(NETWORK.format, numbers) if f" {network} " not in addresses)


def _ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise Unavailable("needs ip, of Debian's package iproute2") from None
    if done.returncode:
        raise Unavailable(f"ip {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout
