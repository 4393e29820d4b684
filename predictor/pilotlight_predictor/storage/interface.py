"""What every kind of store is to the rest: a listing and ranged reads. Types only; no store and no library here.

URI ── uri.parse ──> Location ── stores.open_store ──> Store ── transfer.download ──> files ── cache ──> path
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pilotlight_predictor.errors import LoadFailed

MIB = 1024 * 1024
UNKNOWN_SIZE = -1


class UriNotFound(LoadFailed):
    """Nothing is stored under the URI: the one failure that a retry or another setting cannot mend."""


class Transient(Exception):
    """A read that may succeed when it is tried again; the text is safe to show."""


class Changed(Exception):
    """The object is not the one that was listed: list again and start over."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a listing. `etag` changes when the content does; `digest` is `sha256:…` or `git-sha1:…`."""

    path: str  # relative to the URI; the file's own name when the URI names one file
    size: int
    etag: str = ""
    digest: str = ""
    key: str = ""  # what the store calls it
    ranges: bool = True  # whether a read may start in the middle


@dataclass(frozen=True, slots=True)
class Contents:
    """What a URI names: one file, or all files below a prefix."""

    entries: tuple[Entry, ...]
    single: bool = False


class Progress(NamedTuple):
    """How far a fetch is. `total_bytes` is -1 while a server does not say the size."""

    done_bytes: int
    total_bytes: int
    files_done: int
    files_total: int


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to fetch. An exception out of the progress callback abandons the download; what has come is kept."""

    sha256: str = ""  # of the one file that the URI names; also `#sha256=…` at the end of the URI
    size: int | None = None  # total bytes that the URI must name
    concurrency: int = 8
    part_bytes: int = 16 * MIB
    retries: int = 5  # consecutive failures of one part without a byte of progress
    first_delay: float = 0.25  # seconds before the first retry; doubles up to max_delay
    max_delay: float = 10.0
    timeout: float = 30.0  # seconds without a byte
    allow_http: bool = False  # plain http:// beyond loopback
    unpack: bool = True  # .tar, .tar.gz, .tgz and .zip become directories
    max_unpacked_bytes: int = 256 * 1024 * MIB
    max_members: int = 100_000
    spare_bytes: int = 64 * MIB  # disk space that a download must leave free


class Store(Protocol):
    """One opened URI. Both methods block, are called from several threads, and raise LoadFailed or Transient."""

    def contents(self) -> Contents:
        """Everything that the URI names; raises UriNotFound when that is nothing."""

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end) in pieces of a megabyte or so; `end` -1 reads to the end of the file."""
