"""Interface of stores: a listing and ranged reads. Types only.

URI ── uri.parse ──> Location ── stores.open_store ──> Store ── transfer.download ──> files ── cache ──> path
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

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
    version: str = ""  # version of the object to read; empty: the current one
    members: str | None = None  # of a tar to unpack, the folder whose members are wanted; None: a plain file


def total_size(entries: Sequence[Entry]) -> int:
    """Return the sum of sizes; -1 if the size of an entry is unknown."""
    return -1 if any(entry.size < 0 for entry in entries) else sum(entry.size for entry in entries)


@dataclass(frozen=True, slots=True)
class Contents:
    """Listing of a URI: one file, or all files below a prefix."""

    entries: tuple[Entry, ...]
    single: bool = False
    commit: str = ""  # of a repository of the Hugging Face Hub; the digest of a registry's manifest


@dataclass(frozen=True, slots=True)
class Pin:
    """The content of a URI when its revision was deployed.

    `digest` is `commit:…`, `manifest:…`, `versions:…`, `etags:…` or `sha256:…`; `files` maps paths to versions for
    `versions` only.
    """

    digest: str
    size: int = 0  # bytes; 0 if the store does not say
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.digest.partition(":")[0]

    @property
    def value(self) -> str:
        return self.digest.partition(":")[2]


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
    pin: Pin | None = None  # content to fetch, whatever the URI names by now
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


@runtime_checkable
class VersionedStore(Store, Protocol):
    """Store whose objects may have versions. The methods block and raise as those of Store."""

    def with_versions(self, contents: Contents) -> Contents | None:
        """Return the listing with the version of each object; None if one of them has no version."""

    def at_versions(self, files: Mapping[str, str]) -> Contents:
        """Return the listing of these paths at these versions. Raise ModelChanged if one is not stored any more."""
