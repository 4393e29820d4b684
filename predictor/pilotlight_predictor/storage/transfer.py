"""Parallel download: every missing part of every file, in a bounded number of threads, into one directory.

`download` returns when each file is complete and checked, or raises with the finished parts left for the next attempt.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock
from time import monotonic, sleep
from typing import TypeVar

from pilotlight.wire.machine import boot_id
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.archives import check_digest, check_space, new_hash
from pilotlight_predictor.storage.store_interface import (
    MIB,
    Entry,
    FetchOptions,
    Progress,
    ProgressCallback,
    Store,
    TransientError,
    total_size,
)

REPORT_SECONDS = 0.1
T = TypeVar("T")


class PartFile:
    """File in parts. Created by one thread; `finish_part` may be called by many.

    In a scratch directory, `<hash of the path>.bytes` has the data and `….log` a header line with the identity of the
    object, then one line per finished part. A log of another object, part size or boot is discarded: after a crash of
    the machine the log may be on disk while the data is not.
    """

    def __init__(self, entry: Entry, directory: Path, scratch: Path, part_bytes: int, redacted: str) -> None:
        self.entry = entry
        name = hashlib.sha256(entry.path.encode()).hexdigest()[:24]
        self.target = directory / entry.path
        self.part = scratch / f"{name}.bytes"
        starts = range(0, entry.size, part_bytes)
        whole = [(0, entry.size)]
        self.ranges = [(at, min(at + part_bytes, entry.size)) for at in starts] if entry.ranges else whole
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


def backoff_delay(attempt: int, options: FetchOptions, jitter: float) -> float:
    """Return the seconds before retry `attempt` (from 0): 0.25, 0.5, 1 … 10, each scaled by jitter in [0.5, 1]."""
    return min(options.max_delay, options.first_delay * 2.0 ** min(attempt, 20)) * (0.5 + jitter / 2)


def jitter() -> float:
    """Return a random number that spreads the retries of replicas that lost the same server at the same time."""
    from random import random

    return random()  # noqa: S311 - nothing secret about a pause


def with_retries(call: Callable[[], T], redacted: str, options: FetchOptions) -> T:
    """Return the result of a call without partial progress, such as a listing, with retries."""
    for attempt in range(options.retries + 1):
        try:
            return call()
        except TransientError as error:
            if attempt == options.retries:
                raise retries_exhausted(redacted, error, attempt + 1) from error
            sleep(backoff_delay(attempt, options, jitter()))
    raise AssertionError("the last attempt returns or raises")


def retries_exhausted(redacted: str, error: Exception, attempts: int) -> LoadFailed:
    return LoadFailed(f"{redacted}: {error}; gave up after {attempts} attempts, check the network and try again")


class ProgressMeter:
    """Progress over all threads, reported at most ten times a second."""

    def __init__(self, entries: Sequence[Entry], callback: ProgressCallback | None) -> None:
        self._total = total_size(entries)
        self._files = len(entries)
        self._callback = callback
        self._bytes = 0
        self._files_done = 0
        self._reported_at = 0.0
        self._lock = Lock()

    def add(self, count: int, files: int = 0) -> None:
        with self._lock:
            self._bytes += count
            self._files_done += files
            now = monotonic()
            last = self._files_done == self._files
            if self._callback is None or (now - self._reported_at < REPORT_SECONDS and not last):
                return
            self._reported_at = now
            self._callback(Progress(self._bytes, self._total, self._files_done, self._files))


class Download:
    """One download of one listing."""

    def __init__(self, store: Store, redacted: str, options: FetchOptions, meter: ProgressMeter) -> None:
        self._store = store
        self._redacted = redacted
        self._options = options
        self._meter = meter
        self._stop = Event()

    def run(self, files: Sequence[PartFile]) -> None:
        work = [(file, index) for file in files for index in file.missing_parts()]
        with ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(self._part, file, index) for file, index in work]
            try:
                finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        for future in finished:
            future.result()

    def _part(self, file: PartFile, index: int) -> None:
        start, end = file.ranges[index]
        handle = os.open(file.part, os.O_WRONLY)
        try:
            self._read(file.entry, handle, start, end)
        finally:
            os.close(handle)
        if file.finish_part(index):
            file.complete()
            self._meter.add(0, files=1)

    def _read(self, entry: Entry, handle: int, start: int, end: int) -> None:
        """Read one part to its end; reconnects without limit as long as bytes keep arriving."""
        position, failures = start, 0
        while position != end:
            before = position
            try:
                for piece in self._store.read(entry, position, end):
                    position = self._write(piece, handle, position, end, entry)
                if end < 0 or position == end:
                    return
                raise TransientError("the connection was closed too early")
            except TransientError as error:
                # Only failures without progress count; without ranges every attempt starts over and counts.
                failures = 0 if position > before and entry.ranges else failures + 1
                pause = backoff_delay(failures, self._options, jitter())
                if failures > self._options.retries or self._stop.wait(pause):
                    raise retries_exhausted(self._redacted, error, failures) from error
                if not entry.ranges:
                    self._meter.add(start - position)
                    os.ftruncate(handle, start)
                    position = start

    def _write(self, piece: bytes, handle: int, position: int, end: int, entry: Entry) -> int:
        if self._stop.is_set():
            raise LoadFailed(f"{self._redacted}: the download was stopped")
        if 0 <= end < position + len(piece):
            raise LoadFailed(
                f"{self._redacted}: {entry.path} is longer than the {entry.size} bytes that were announced"
            )
        try:
            os.pwrite(handle, piece, position)
        except OSError as error:
            raise LoadFailed(
                f"{self._redacted}: {entry.path} cannot be written ({error.strerror}); check the disk"
            ) from error
        self._meter.add(len(piece))
        return position + len(piece)


def download(
    store: Store, entries: Sequence[Entry], directory: Path, scratch: Path, redacted: str, options: FetchOptions,
    progress: ProgressCallback | None = None,
) -> None:  # fmt: skip
    """Download `entries` into `directory`, which is private to the caller: a file under its own name is complete.

    Unfinished files are in `scratch`, on the same file system.
    """
    directory.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, exist_ok=True)
    meter = ProgressMeter(entries, progress)
    files = [PartFile(entry, directory, scratch, options.part_bytes, redacted) for entry in entries]
    open_files = [file for file in files if not file.target.exists()]
    for file in open_files:
        file.resume()
    check_space(sum(max(file.entry.size, 0) - file.done_bytes() for file in open_files), directory, options, redacted)
    for file in files:
        if file.target.exists():
            meter.add(file.entry.size, files=1)
        elif not file.missing_parts():
            file.complete()
            meter.add(file.entry.size, files=1)
        else:
            meter.add(file.done_bytes())
    Download(store, redacted, options, meter).run([file for file in open_files if file.missing_parts()])
