"""Log writer of a home: a small process between the output of replicas and their log files, which it keeps bounded.

Every replica has a FIFO for its output, `run/output/NAMESPACE@SERVICE@REPLICA`, opened by the replica for reading and
writing, so that it never sees a closed pipe. The writer copies it to `logs/NAMESPACE/SERVICE/REPLICA.log`, and renames
a file to .1 and .2 before it would grow beyond its limit: files × limit bytes is the most that a replica's logs take,
however much it writes. Without a writer a replica waits once its pipe is full; the supervisor starts another (logs.py).

A byte in `run/log-writer.fifo` makes the writer look for new FIFOs. One that was renamed to `….ended` is copied to its
end and removed: then its log is complete. Started as a file, not a module, and with the standard library only: 10 ms.
"""

import argparse
import fcntl
import os
import resource
import select
import signal
import sys

CHUNK = 1 << 18  # also the size of the pipes: what a replica may write while the writer is busy
ENDED = ".ended"
RESCAN_MS = 30_000


class RotatedFile:
    """Log of one replica: at most `files` files of `limit` bytes each, cut between lines where that is possible."""

    def __init__(self, path: str, limit: int, files: int) -> None:
        self._path, self._limit, self._files = path, limit, files
        self._file = -1
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append; output that cannot be written, such as to a full disk, is lost."""
        try:
            while data:
                if self._file < 0:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                    self._size = os.fstat(self._file).st_size
                space = self._limit - self._size
                part = data if len(data) <= space else data[: max(0, data.rfind(b"\n", 0, max(0, space)) + 1)]
                if not part and not self._size:
                    part = data[:space]  # one line longer than a file
                written = os.write(self._file, part) if part else 0
                self._size += written
                data = data[written:]
                if data and written == len(part):
                    self._rotate()
        except OSError:
            self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rotate(self) -> None:
        """Rename the files by one number. The log itself always exists, since readers list and open it at any time."""
        self.close()
        for number in range(self._files - 1, 1, -1):
            if os.path.exists(f"{self._path}.{number - 1}"):
                os.replace(f"{self._path}.{number - 1}", f"{self._path}.{number}")
        fresh = f"{self._path}.new"
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        if os.path.exists(f"{self._path}.1"):
            os.unlink(f"{self._path}.1")
        os.link(self._path, f"{self._path}.1")
        os.replace(fresh, self._path)


class Writer:
    """Copies every FIFO of a folder to its log until it is terminated."""

    def __init__(self, home: str, limit: int, files: int) -> None:
        self._home, self._limit, self._files = home, limit, files
        self._folder = os.path.join(home, "run", "output")
        self._logs: dict[str, tuple[int, RotatedFile]] = {}  # by name of the FIFO
        self._names: dict[int, str] = {}
        self._poll = select.poll()
        self._wake = os.open(os.path.join(home, "run", "log-writer.fifo"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)

    def run(self) -> None:
        self._scan()
        while True:
            ready = self._poll.poll(RESCAN_MS)
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    os.read(self._wake, CHUNK)
                else:
                    self._copy(self._names[descriptor])
            if not ready or any(descriptor == self._wake for descriptor, _ in ready):
                self._scan()

    def _scan(self) -> None:
        """Open new FIFOs; finish those that have ended."""
        try:
            names = set(os.listdir(self._folder))
        except OSError:
            return  # the home was removed; what is open is copied on
        for name in sorted(names, key=lambda name: not name.endswith(ENDED)):  # a restarted replica has the same name
            if name.removesuffix(ENDED) not in self._logs:
                self._add(name)
            if name.endswith(ENDED):
                self._finish(name)

    def _add(self, name: str) -> None:
        try:
            pipe = os.open(os.path.join(self._folder, name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            try:  # noqa: SIM105 - contextlib would be imported for this alone
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CHUNK)
            except OSError:
                pass  # beyond the user's share of pipe memory; it keeps its size
        log = os.path.join(self._home, "logs", *name.removesuffix(ENDED).split("@")) + ".log"
        self._logs[name.removesuffix(ENDED)] = pipe, RotatedFile(log, self._limit, self._files)
        self._names[pipe] = name.removesuffix(ENDED)
        self._poll.register(pipe, select.POLLIN)

    def _copy(self, name: str) -> bool:
        """Copy one chunk; return whether there was any."""
        pipe, log = self._logs[name]
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return False
        log.write(data)
        return bool(data)

    def _finish(self, ended: str) -> None:
        """Copy the rest, at most what the pipe holds: a process that was left behind may go on writing."""
        name = ended.removesuffix(ENDED)
        if name not in self._logs:
            return
        for _ in range(4):
            if not self._copy(name):
                break
        pipe, log = self._logs.pop(name)
        del self._names[pipe]
        self._poll.unregister(pipe)
        os.close(pipe)
        log.close()
        os.unlink(os.path.join(self._folder, ended))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--limit", type=int, required=True, help="bytes of one file")
    parser.add_argument("--files", type=int, required=True, help="files of one replica")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lock = os.open(os.path.join(options.home, "run", "log-writer.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one writes
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two descriptors for each replica
    Writer(options.home, options.limit, options.files).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
