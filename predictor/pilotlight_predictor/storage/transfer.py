"""Parallel download: every missing part of every file, in a bounded number of threads, into one directory.

Called with a store and its listing; it returns when each file is complete and checked, or raises with the finished
parts left for the next attempt.
"""

import os
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Lock
from time import monotonic

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.checks import check_space, total_size
from pilotlight_predictor.storage.interface import (
    Entry,
    FetchOptions,
    Progress,
    ProgressCallback,
    Store,
    TransientError,
)
from pilotlight_predictor.storage.parts import PartFile
from pilotlight_predictor.storage.retry import backoff_delay, jitter, retries_exhausted

REPORT_SECONDS = 0.1


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
    store: Store,
    entries: Sequence[Entry],
    directory: Path,
    scratch: Path,
    redacted: str,
    options: FetchOptions,
    progress: ProgressCallback | None = None,
) -> None:
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
