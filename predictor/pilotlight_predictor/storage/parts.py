"""Parts of one file during its download: which are finished, in a log that survives the process, and the running hash.

In a scratch directory, `<hash of the path>.bytes` has the data and `….log` a header line with the identity of the
object, then one line per finished part. A log of another object, part size or boot is discarded: after a crash of the
machine the log may be on disk while the data is not.
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
    """File in parts. Created by one thread; `finish_part` may be called by many."""

    def __init__(self, entry: Entry, directory: Path, scratch: Path, part_bytes: int, redacted: str) -> None:
        self.entry = entry
        name = hashlib.sha256(entry.path.encode()).hexdigest()[:24]
        self.target = directory / entry.path
        self.part = scratch / f"{name}.bytes"
        self.ranges = part_ranges(entry.size, part_bytes) if entry.ranges else [(0, entry.size)]
        self._log = scratch / f"{name}.log"
        self._header = f"{entry.size} {part_bytes} {boot_id()} {entry.etag}".replace("\n", " ")
        self._redacted = redacted
        self._done: set[int] = set()
        self._state = Lock()
        self._hash = new_hash(entry.digest, entry.size)
        self._hash_lock = Lock()
        self._hashed = 0  # parts in the running hash, always a prefix of the file

    def resume(self) -> None:
        """Resume an interrupted download, or start a new one."""
        lines = self._log.read_text().splitlines() if self._log.exists() and self.part.exists() else []
        if self.entry.ranges and self.entry.etag and lines[:1] == [self._header]:
            self._done = {int(line) for line in lines[1:] if line.isdigit() and int(line) < len(self.ranges)}
            return
        self.part.unlink(missing_ok=True)
        self.part.touch()
        self._log.write_text(self._header + "\n")

    def missing_parts(self) -> list[int]:
        return [index for index in range(len(self.ranges)) if index not in self._done]

    def done_bytes(self) -> int:
        return sum(end - start for index, (start, end) in enumerate(self.ranges) if index in self._done)

    def finish_part(self, index: int) -> bool:
        """Record a part; return True for the last one, after which the caller must call `complete`."""
        with self._state:
            with self._log.open("a") as log:
                log.write(f"{index}\n")
            self._done.add(index)
            last = len(self._done) == len(self.ranges)
        if self._hash is not None and self._hash_lock.acquire(blocking=False):
            try:
                self._update_hash()
            finally:
                self._hash_lock.release()
        return last

    def complete(self) -> None:
        """Check the hash and move the file to its target; a file with a wrong hash is removed."""
        with self._hash_lock:
            self._update_hash()
        try:
            check_digest(self._hash, self.entry, self._redacted)
        except BaseException:
            self.part.unlink()
            self._log.unlink()
            raise
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.part.replace(self.target)
        self._log.unlink()

    def _update_hash(self) -> None:
        """Hash finished parts in order while later ones still arrive: their data is still in the page cache."""
        if self._hash is None:
            return
        with self.part.open("rb") as file:
            while self._hashed in self._done:
                start, end = self.ranges[self._hashed]
                file.seek(start)
                while piece := file.read(MIB if end < 0 else min(MIB, end - file.tell())):
                    self._hash.update(piece)
                self._hashed += 1
