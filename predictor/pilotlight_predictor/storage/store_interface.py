"""Interface of stores: a listing and ranged reads. Types only.

URI ── uri.parse ──> Location ── stores.open_store ──> Store ── transfer.download ──> files ── cache ──> path
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pilotlight_predictor.errors import LoadFailed

MIB = 1024 * 1024
UNKNOWN_SIZE = -1


class UriNotFound(LoadFailed):
    """Nothing is stored under the URI: the only failure that retries and settings cannot fix."""


class TransientError(Exception):
    """Read error that may succeed when retried; the text is safe to show."""


class ContentChanged(Exception):
    """The object differs from the listed one: list again and restart."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a listing. `etag` changes with the content; `digest` is `sha256:…` or `git-sha1:…`."""

    path: str  # relative to the URI; the file name if the URI is one file
    size: int
    etag: str = ""
    digest: str = ""
    key: str = ""  # name in the store
    ranges: bool = True  # whether a read may start in the middle


@dataclass(frozen=True, slots=True)
class Contents:
    """Listing of a URI: one file, or all files below a prefix."""

    entries: tuple[Entry, ...]
    single: bool = False


class Progress(NamedTuple):
    """Progress of a fetch. `total_bytes` is -1 while a server does not report the size."""

    done_bytes: int
    total_bytes: int
    files_done: int
    files_total: int


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of a fetch. An exception from the progress callback cancels the download; finished parts are resumed."""

    sha256: str = ""  # of a single file; also `#sha256=…` at the end of the URI
    size: int | None = None  # expected total bytes
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
    spare_bytes: int = 64 * MIB  # disk space to leave free


class Store(Protocol):
    """One opened URI. Both methods block, are called from several threads, and raise LoadFailed or Transient."""

    def contents(self) -> Contents:
        """Return the listing. Raise UriNotFound if it is empty."""

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes [start, end) in pieces of about a megabyte; `end` -1 reads to the end of the file."""
