"""Audit log: hash-chained JSON lines that several processes of a machine append to, and their verification.

A line has its number `seq`, the hash of the line before it (`prev`), and as its last key `hash`: SHA-256, in hex, of
the line's bytes before `,"hash"`. Writers take a lock for each record, so all of them share one chain. A record is in
the kernel when `append` returns, so the end of the process loses none; it is on disk after SYNC_S, or at once with
`sync`. Files are rotated by size and never removed; the chain continues in the next file.
"""

import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

Json = Any
FILE: Final = "audit.jsonl"
ROTATED: Final = "audit-*.jsonl"  # by the number of their first record
LOCK: Final = "audit.lock"
MAX_FILE_BYTES: Final = 64 << 20
SYNC_S: Final = 1.0
START: Final = "0" * 64  # `prev` of the first record
RECOVERED: Final = "recovered"  # event of the record that replaces an incomplete line
KEPT_BYTES: Final = 4096  # of an incomplete line
MAX_LINE: Final = 1 << 17  # writers bound their texts
_LINE: Final = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}\n', re.DOTALL)


class Head(NamedTuple):
    """Number and hash of the last record."""

    seq: int = 0
    hash: str = START


class BrokenChain(Exception):
    """A line of an audit log that does not belong to its chain."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")


def encode(fields: Mapping[str, Json], head: Head, at: float) -> tuple[bytes, Head]:
    """Return the line of a record after `head`, and the head after it."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"seq": head.seq + 1, "time": moment, **fields, "prev": head.hash}
    text = json.dumps(record, separators=(",", ":")).encode()[:-1]
    digest = hashlib.sha256(text).hexdigest()
    return b'%b,"hash":"%b"}\n' % (text, digest.encode()), Head(head.seq + 1, digest)


class AuditLog:
    """Audit log of a folder. Used from one thread; other processes may append to the same folder."""

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._path = folder / FILE
        self._lock = -1  # descriptors
        self._file = -1
        self._end = -1  # size of the file after this process's last record, whose head is `_head`
        self._head = Head()
        self._unsynced = threading.Event()

    def append(self, fields: Mapping[str, Json], *, sync: bool = False, now: float | None = None) -> Head:
        """Append a record; return its head. Raise OSError if it is not written."""
        with self._locked():
            size = os.fstat(self._file).st_size
            if size != self._end:  # another process has written, or this one has just started
                size = self._recover(size)
            if size >= self._max_bytes:
                self._rotate()
            self._write(fields, now)
            if sync:
                os.fsync(self._file)
        if not sync:
            self._sync_soon()
        return self._head

    def _write(self, fields: Mapping[str, Json], now: float | None) -> None:
        line, head = encode(fields, self._head, time.time() if now is None else now)
        self._end = -1  # unknown if the write fails
        if os.write(self._file, line) < len(line):
            raise OSError(28, "the disk is full", str(self._path))  # the next append discards the part
        self._head, self._end = head, os.fstat(self._file).st_size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock < 0:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _open(self._folder / LOCK)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            if self._file < 0 or not self._is_current():
                self._reopen()
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._end = _open(self._path), -1

    def _recover(self, size: int) -> int:
        """Read the head; replace an incomplete last line, which a crash leaves, by a record that says so."""
        start = max(0, size - MAX_LINE)
        tail = os.pread(self._file, size - start, start)
        at = tail.rfind(b"\n", 0, -1) + 1 if tail else 0
        last = tail[at:]
        if last and (head := _head(last)) is not None:
            self._head, self._end = head, size
            return size
        before = tail[tail.rfind(b"\n", 0, max(0, at - 1)) + 1 : at]
        found = _head(before) if before else self._rotated_head()
        if found is None:
            raise OSError(5, "its last records cannot be read; run platformctl audit verify", str(self._path))
        self._head = found
        if last:
            os.ftruncate(self._file, start + at)
            kept = last[:KEPT_BYTES].decode(errors="backslashreplace")
            self._write({"event": RECOVERED, "bytes": len(last), "discarded": kept}, None)
        return os.fstat(self._file).st_size

    def _rotated_head(self) -> Head | None:
        """Return the head of the newest rotated file; of a new log the start."""
        newest = max(self._folder.glob(ROTATED), default=None)
        if newest is None:
            return Head()
        with newest.open("rb") as file:
            file.seek(max(0, newest.stat().st_size - MAX_LINE))
            return _head(file.read().splitlines(keepends=True)[-1])

    def _rotate(self) -> None:
        with self._path.open("rb") as file:
            first = json.loads(file.readline())["seq"]
        os.fsync(self._file)
        self._path.rename(self._folder / f"audit-{first:015d}.jsonl")
        self._reopen()

    def _sync_soon(self) -> None:
        if not self._unsynced.is_set():
            self._unsynced.set()
            timer = threading.Timer(SYNC_S, self._sync)
            timer.daemon = True
            timer.start()

    def _sync(self) -> None:
        self._unsynced.clear()
        with suppress(OSError):  # rotated meanwhile, which syncs it too
            os.fsync(self._file)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _head(line: bytes) -> Head | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        return Head(int(json.loads(line)["seq"]), match[2].decode())
    except (KeyError, TypeError, ValueError):
        return None


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their records."""
    current = folder / FILE
    return [*sorted(folder.glob(ROTATED)), *([current] if current.exists() else [])]


class Verified(NamedTuple):
    records: int
    head: Head
    notes: tuple[str, ...] = ()  # records that replace an incomplete line
    has_expected: bool = True  # a record has the hash that was asked for


def verify(files: Iterable[Path], after: str = START, expected: str = "") -> Verified:
    """Check every line of the files, in their order. Raise BrokenChain for the first that is wrong, or OSError.

    `after`: hash of the record before the first one; `expected`: of one that must be there.
    """
    head, records, notes, found = Head(0, after), 0, list[str](), not expected
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record, digest = _checked(path, number, line)
                if record["prev"] != head.hash or record["seq"] != (head.seq + 1 if records else record["seq"]):
                    raise BrokenChain(path, number, _mismatch(record, head, bool(records)))
                head, records, found = Head(record["seq"], digest), records + 1, found or digest == expected
                if record.get("event") == RECOVERED:
                    notes.append(f"{path}:{number}: {record.get('bytes')} bytes of an incomplete line were discarded")
    return Verified(records, head, tuple(notes), found)


def _checked(path: Path, number: int, line: bytes) -> tuple[dict[str, Json], str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise BrokenChain(path, number, "is not a complete record; a crash leaves such a last line")
    if hashlib.sha256(match[1]).hexdigest() != match[2].decode():
        raise BrokenChain(path, number, "was changed: its hash is not that of its content")
    try:
        record = json.loads(line)
        if type(record["seq"]) is int and isinstance(record["prev"], str):
            return record, match[2].decode()
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise BrokenChain(path, number, "is not a record of an audit log")


def _mismatch(record: Mapping[str, Json], head: Head, follows: bool) -> str:
    if not follows and head.hash == START:
        return f"begins with record {record['seq']}: those before it are missing; add their file, or use --after HASH"
    if not follows:
        return f"record {record['seq']} does not follow {head.hash}"
    if record["seq"] > head.seq + 1:
        return f"record {record['seq']} follows record {head.seq}: {record['seq'] - head.seq - 1} were removed"
    if record["seq"] <= head.seq:
        return f"record {record['seq']} follows record {head.seq}: records were reordered or inserted"
    return f"record {record['seq']} does not follow record {head.seq}: one of them was replaced"
