"""One file on its way: which parts are there, in a log that survives the process, and the hash that follows them.

In a scratch directory, `<hash of the path>.bytes` holds what has come and `….log` says what that is: a first line
with the object that the parts belong to, then one line per finished part. A log of another object, part size or boot
is not believed: after a crash of the machine, the log may have reached the disk when the bytes had not.
"""

import hashlib
from functools import cache
from pathlib import Path
from threading import Lock

from pilotlight_predictor.storage.checks import check_digest, new_hash
from pilotlight_predictor.storage.interface import MIB, Entry


@cache
def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def part_ranges(size: int, part_bytes: int) -> list[tuple[int, int]]:
    return [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]


class PartFile:
    """Created by one thread; `finish_part` may then be called by many."""

    def __init__(self, entry: Entry, directory: Path, scratch: Path, part_bytes: int, shown: str) -> None:
        self.entry = entry
        name = hashlib.sha256(entry.path.encode()).hexdigest()[:24]
        self.target = directory / entry.path
        self.part = scratch / f"{name}.bytes"
        self.ranges = part_ranges(entry.size, part_bytes) if entry.ranges else [(0, entry.size)]
        self._log = scratch / f"{name}.log"
        self._header = f"{entry.size} {part_bytes} {boot_id()} {entry.etag}".replace("\n", " ")
        self._shown = shown
        self._done: set[int] = set()
        self._state = Lock()
        self._hash = new_hash(entry.digest, entry.size)
        self._hash_lock = Lock()
        self._hashed = 0  # parts that the running hash has seen, always a prefix of the file

    def begin(self) -> None:
        """Takes up what an interrupted run left behind, or starts from nothing."""
        lines = self._log.read_text().splitlines() if self._log.exists() and self.part.exists() else []
        if self.entry.ranges and self.entry.etag and lines[:1] == [self._header]:
            self._done = {int(line) for line in lines[1:] if line.isdigit() and int(line) < len(self.ranges)}
            return
        self.part.unlink(missing_ok=True)
        self.part.touch()
        self._log.write_text(self._header + "\n")

    def missing(self) -> list[int]:
        return [index for index in range(len(self.ranges)) if index not in self._done]

    def done_bytes(self) -> int:
        return sum(end - start for index, (start, end) in enumerate(self.ranges) if index in self._done)

    def finish_part(self, index: int) -> bool:
        """Notes a part; whoever notes the last one is told so and has to call `complete`."""
        with self._state:
            with self._log.open("a") as log:
                log.write(f"{index}\n")
            self._done.add(index)
            last = len(self._done) == len(self.ranges)
        if self._hash is not None and self._hash_lock.acquire(blocking=False):
            try:
                self._follow()
            finally:
                self._hash_lock.release()
        return last

    def complete(self) -> None:
        """Checks the whole and gives it its name; a file with a wrong hash is thrown away."""
        with self._hash_lock:
            self._follow()
        try:
            check_digest(self._hash, self.entry, self._shown)
        except BaseException:
            self.part.unlink()
            self._log.unlink()
            raise
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.part.replace(self.target)
        self._log.unlink()

    def _follow(self) -> None:
        """Hashes finished parts in order while later ones still arrive, out of the page cache they were written to."""
        if self._hash is None:
            return
        with self.part.open("rb") as file:
            while self._hashed in self._done:
                start, end = self.ranges[self._hashed]
                file.seek(start)
                while piece := file.read(MIB if end < 0 else min(MIB, end - file.tell())):
                    self._hash.update(piece)
                self._hashed += 1
