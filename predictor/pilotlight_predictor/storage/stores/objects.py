"""Object stores through obstore: what s3, gs and az share. Their modules only say how to reach the bucket."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.storage.addresses import is_loopback_url
from pilotlight_predictor.storage.interface import MIB, Changed, Contents, Entry, FetchOptions, Transient, UriNotFound
from pilotlight_predictor.storage.uri import Location, redact_text, safe_relative

T = TypeVar("T")

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_RETRIED_STATUS = {408, 425, 429}
# Where obstore asks for credentials when the environment has none: an instance's metadata service.
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|/latest/api/token|computeMetadata|/metadata/identity/")


class ObjectsStore:
    """A bucket (or container) and the key or prefix in it. `hint` says what to set when access is refused."""

    def __init__(self, location: Location, bucket: Any, prefix: str, hint: str) -> None:
        self._location = location
        self._bucket = bucket
        self._prefix = prefix
        self._hint = hint

    def contents(self) -> Contents:
        """A name with an ending is most likely one object, any other a prefix: the likelier is asked for first."""
        prefix = self._prefix.rstrip("/")
        attempts: list[Callable[[str], Contents | None]] = [self._below]
        if prefix and not self._prefix.endswith("/"):
            attempts = [self._object, self._below] if "." in prefix.rpartition("/")[2] else [self._below, self._object]
        for attempt in attempts:
            found = self._translated(attempt, prefix)
            if found is not None:
                return found
        raise UriNotFound(f"{self._location.shown}: nothing is stored there; check the bucket and the path")

    def _object(self, key: str) -> Contents | None:
        import obstore

        try:
            meta = obstore.head(self._bucket, key)
        except FileNotFoundError:
            return None
        return Contents((_entry(meta, key.rpartition("/")[2]),), single=True)

    def _below(self, prefix: str) -> Contents | None:
        import obstore

        skipped = len(prefix) + 1 if prefix else 0
        pages = obstore.list(self._bucket, prefix=prefix or None)
        found = [_entry(meta, meta["path"][skipped:]) for page in pages for meta in page]
        entries = [self._checked(entry) for entry in without_directory_markers(found)]
        return Contents(tuple(entries)) if entries else None

    def _checked(self, entry: Entry) -> Entry:
        if not safe_relative(entry.path):
            raise LoadFailed(f"{self._location.shown}: the object name {entry.path!r} cannot be a file name; rename it")
        return entry

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        import obstore

        result = self._translated(
            lambda key: obstore.get(self._bucket, key, options={"range": (start, end)}), entry.key
        )
        if _etag(result.meta) != entry.etag:
            raise Changed(self._location.shown)
        pieces = iter(result.stream(min_chunk_size=MIB))
        while piece := self._translated(lambda _: next(pieces, b""), entry.key):
            yield piece

    def _translated(self, call: Callable[[str], T], key: str) -> T:
        """Runs one call of obstore and gives its failures our names."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call(key)
        except FileNotFoundError as error:
            raise UriNotFound(f"{self._location.shown}: {key!r} is not there; check the bucket and the path") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise LoadFailed(f"{self._location.shown}: access was refused; set {self._hint}") from error
        except BaseError as error:
            raise self._named(str(error)) from error

    def _named(self, message: str) -> Exception:
        if _METADATA_SERVICE.search(message):
            return LoadFailed(f"{self._location.shown}: no credentials were found; set {self._hint}")
        found = _STATUS.search(message)
        status = int(found[1]) if found else 0
        detail = redact_text(message)
        if status == 404:
            return UriNotFound(f"{self._location.shown}: the bucket is not there; check its name and the endpoint")
        if status in {401, 403}:
            return LoadFailed(f"{self._location.shown}: access was refused; set {self._hint}")
        if 400 <= status < 500 and status not in _RETRIED_STATUS:
            return LoadFailed(f"{self._location.shown}: the store refused the request ({detail}); set {self._hint}")
        return Transient(detail)


def without_directory_markers(entries: Sequence[Entry]) -> list[Entry]:
    """Sorted by path. Consoles store an empty object named like the folder; no file can have that name as well."""
    folders = {parent for entry in entries for parent in _parents(entry.path)}
    kept = (entry for entry in entries if entry.size > 0 or not (entry.path in folders or entry.path in {"", "/"}))
    return sorted(kept, key=lambda entry: entry.path)


def _parents(path: str) -> Iterator[str]:
    parent = path.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]


def _entry(meta: Any, path: str) -> Entry:
    return Entry(path=path, size=meta["size"], etag=_etag(meta), key=meta["path"])


def _etag(meta: Any) -> str:
    """Azure quotes its etags in one answer and not in another."""
    tag = str(meta["e_tag"] or meta["last_modified"].isoformat())
    return tag.removeprefix("W/").strip('"')


def bucket_and_prefix(location: Location, advice: str) -> tuple[str, str]:
    bucket, _, prefix = location.rest.partition("/")
    if "@" in bucket:
        raise LoadFailed(f"{location.shown}: credentials in the URI are not read; set {advice}")
    if not bucket:
        raise LoadFailed(f"{location.shown}: the bucket is missing; write {location.scheme}://bucket/path")
    return bucket, prefix


def opened(build: Callable[[], T], location: Location, hint: str) -> T:
    """Runs obstore's constructor, which reads the environment and the files that it names."""
    from obstore.exceptions import BaseError

    try:
        return build()
    except (BaseError, OSError, ValueError) as error:
        raise LoadFailed(f"{location.shown}: cannot be opened ({redact_text(str(error))}); check {hint}") from error


def client_options(endpoint: str | None, options: FetchOptions) -> dict[str, Any]:
    """An endpoint that the operator wrote as http:// is meant so; a loopback endpoint never goes through a proxy."""
    chosen: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=options.timeout),
        "read_timeout": timedelta(seconds=options.timeout),
        "timeout": timedelta(hours=1),  # of a whole part; a stall is what read_timeout bounds
    }
    if endpoint and endpoint.startswith("http://"):
        chosen["allow_http"] = True
    if endpoint and is_loopback_url(endpoint):
        # Naming a proxy is the only way to switch off those of the environment; the exclusion keeps it unused.
        chosen |= {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "localhost,127.0.0.0/8,::1"}
    return chosen


# The retry loop of a part is ours: it keeps the bytes that have come, shows in progress and can be stopped.
RETRY_ONCE = {"max_retries": 1, "retry_timeout": timedelta(seconds=60)}
