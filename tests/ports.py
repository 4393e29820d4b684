"""Ports for servers whose numbers must be known before they listen, or stay theirs while nobody listens.

Below those that the kernel gives to whoever asks for any, so that no other test's server gets one of them meanwhile;
each process of a test run has a range of its own, whatever other runs there are on the machine. Runs that do not see
each other's locks begin at different places of a range.
"""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FIRST, EACH, RANGES = 20_100, 1_200, 8
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % RANGES


def _own_range() -> int:
    """One that nobody else has: it is locked as long as this process lives. Where all are, the worker's number says."""
    for number in range(RANGES):
        try:
            lock = os.open(
                Path(tempfile.gettempdir()) / f"pilotlight-test-ports-{number}", os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError:  # somebody else's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return number
    return WORKER


def _numbers() -> Iterator[int]:
    first = FIRST + _own_range() * EACH
    yield from range(first + os.getpid() % (EACH // 2), first + EACH)
    while True:
        yield from range(first, first + EACH)


_next = _numbers()


def free_port() -> int:
    """Another one each time, until all of the range were given."""
    return next(port for port in _next if _is_free(port))


def free_range(count: int) -> int:
    """The first of so many, one behind the other."""
    ports = [free_port()]
    while len(ports) < count:
        port = free_port()
        ports = [*ports, port] if port == ports[-1] + 1 else [port]
    return ports[0]


def _is_free(port: int) -> bool:
    """Nor does the kernel remember connections of it, which would be in the way of some servers."""
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def listens_on_tcp(pid: int) -> bool:
    """Whether a process has a socket that listens on a port; it may close other files meanwhile."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    files = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            files.add(os.readlink(each))
    assert files, f"process {pid} has no open files"
    return not listening.isdisjoint(files)
