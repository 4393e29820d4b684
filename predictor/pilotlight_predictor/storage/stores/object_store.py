"""Object stores through obstore: the common part of s3, gs and az. Their modules configure the bucket."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from pilotlight_predictor.errors import LoadFailed, ModelChanged
from pilotlight_predictor.storage.store_interface import (
    MIB,
    ContentChanged,
    Contents,
    Entry,
    FetchOptions,
    TransientError,
    UriNotFound,
)
from pilotlight_predictor.storage.uri import Location, is_loopback_url, redact_text, safe_relative

T = TypeVar("T")
# `Download` retries parts itself: it keeps the received bytes, reports progress and can be stopped.
RETRY_ONCE = {"max_retries": 1, "retry_timeout": timedelta(seconds=60)}
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_RETRIED_STATUS = {408, 425, 429}
PARALLEL_HEADS = 8
NULL_VERSION = "null"  # S3's version of an object that the next write replaces, in buckets without versioning
# Without credentials in the environment obstore queries the metadata service of the instance.
_METADATA_SERVICE = re.compile(r"169\.254\.169\.254|/latest/api/token|computeMetadata|/metadata/identity/")


class ObjectStore:
    """Bucket (or container) with a key or prefix. `hint` is the setting to name when access is denied."""

    def __init__(self, location: Location, bucket: Any, prefix: str, hint: str) -> None:
        self._location = location
        self._bucket = bucket
        self._prefix = prefix
        self._hint = hint

    def contents(self) -> Contents:
        """Return the listing. A name with an extension is tried as an object first, any other as a prefix."""
        prefix = self._prefix.rstrip("/")
        attempts: list[Callable[[str], Contents | None]] = [self._below]
        if prefix and not self._prefix.endswith("/"):
            attempts = [self._object, self._below] if "." in prefix.rpartition("/")[2] else [self._below, self._object]
        for attempt in attempts:
            contents = self._call(attempt, prefix)
            if contents is not None:
                return contents
        raise UriNotFound(f"{self._location.redacted}: nothing found; check the bucket and the path")

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
        listed = [_entry(meta, meta["path"][skipped:]) for page in pages for meta in page]
        entries = without_directory_markers(listed)
        for name in (entry.path for entry in entries if not safe_relative(entry.path)):
            raise LoadFailed(f"{self._location.redacted}: the object name {name!r} cannot be a file name; rename it")
        return Contents(tuple(entries)) if entries else None

    def with_versions(self, contents: Contents) -> Contents | None:
        """Return the listing with the version of each object, one request each: listings do not have versions."""
        import obstore

        def head(entry: Entry) -> Entry:
            meta = self._call(lambda key: obstore.head(self._bucket, key), entry.key)
            version = str(meta["version"] or "")
            return replace(_entry(meta, entry.path), version="" if version == NULL_VERSION else version)

        if not head(contents.entries[0]).version:
            return None
        entries = tuple(_in_parallel(head, contents.entries))
        return replace(contents, entries=entries) if all(entry.version for entry in entries) else None

    def at_versions(self, files: Mapping[str, str]) -> Contents:
        """Return the listing of these paths at these versions. Raise ModelChanged if one is not stored any more."""
        prefix = self._prefix.rstrip("/")
        if [*files] == [prefix.rpartition("/")[2]]:  # one object, unless a folder has one file of its own name
            path, version = next(iter(files.items()))
            entry = self._at_version(prefix, path, version)
            if entry is not None:
                return Contents((entry,), single=True)

        def find(item: tuple[str, str]) -> Entry:
            path, version = item
            entry = self._at_version(f"{prefix}/{path}" if prefix else path, path, version)
            if entry is None:
                raise ModelChanged(
                    f"{self._location.redacted}: {path} changed since this revision was deployed, and its version"
                    f" {version} is no longer stored; deploy again with -f FILE for a new revision"
                )
            return entry

        return Contents(tuple(_in_parallel(find, sorted(files.items()))))

    def _at_version(self, key: str, path: str, version: str) -> Entry | None:
        """Return the object at a version; None if it is not stored.

        The current version is read without naming it: on S3 that needs a permission less (s3:GetObjectVersion).
        """
        import obstore
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        def head(_: str) -> Entry | None:
            try:
                current = obstore.head(self._bucket, key)
            except FileNotFoundError:
                current = None
            if current is not None and current["version"] == version:
                return _entry(current, path)
            try:
                old = obstore.get(self._bucket, key, options={"version": version, "head": True}).meta
            except FileNotFoundError:
                return None
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise ModelChanged(
                    f"{self._location.redacted}: {path} changed since this revision was deployed, and reading its"
                    f" version {version} was refused; allow it (on S3: s3:GetObjectVersion)"
                    " or deploy again with -f FILE"
                ) from error
            return replace(_entry(old, path), version=version)

        return self._call(head, key)

    def read(self, entry: Entry, start: int, end: int) -> Iterator[bytes]:
        import obstore

        options: Any = {"range": (start, end), **({"version": entry.version} if entry.version else {})}
        result = self._call(lambda key: obstore.get(self._bucket, key, options=options), entry.key)
        if _etag(result.meta) != entry.etag:
            raise ContentChanged(self._location.redacted)
        pieces = iter(result.stream(min_chunk_size=MIB))
        while piece := self._call(lambda _: next(pieces, b""), entry.key):
            yield piece

    def _call(self, call: Callable[[str], T], key: str) -> T:
        """Call obstore and translate its errors."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call(key)
        except FileNotFoundError as error:
            raise UriNotFound(
                f"{self._location.redacted}: {key!r} does not exist; check the bucket and the path"
            ) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise LoadFailed(f"{self._location.redacted}: access was refused; set {self._hint}") from error
        except BaseError as error:
            raise self._translate_error(str(error)) from error

    def _translate_error(self, message: str) -> Exception:
        if _METADATA_SERVICE.search(message):
            return LoadFailed(f"{self._location.redacted}: no credentials were found; set {self._hint}")
        match = _STATUS.search(message)
        status = int(match[1]) if match else 0
        detail = redact_text(message)
        if status == 404:
            return UriNotFound(f"{self._location.redacted}: the bucket does not exist; check its name and the endpoint")
        if status in {401, 403}:
            return LoadFailed(f"{self._location.redacted}: access was refused; set {self._hint}")
        if 400 <= status < 500 and status not in _RETRIED_STATUS:
            return LoadFailed(f"{self._location.redacted}: the store rejected the request ({detail}); set {self._hint}")
        return TransientError(detail)


def without_directory_markers(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries sorted by path, without the empty objects that consoles create for folders."""
    folders = {entry.path[:at] for entry in entries for at, char in enumerate(entry.path) if char == "/"}
    files = (entry for entry in entries if entry.size > 0 or not (entry.path in folders or entry.path in {"", "/"}))
    return sorted(files, key=lambda entry: entry.path)


def _in_parallel(call: Callable[[T], Entry], items: Sequence[T]) -> list[Entry]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(PARALLEL_HEADS, thread_name_prefix="head") as pool:
        return list(pool.map(call, items))


def _entry(meta: Any, path: str) -> Entry:
    return Entry(path=path, size=meta["size"], etag=_etag(meta), key=meta["path"])


def _etag(meta: Any) -> str:
    """Return the etag without quotes: Azure quotes it in some responses only."""
    tag = str(meta["e_tag"] or meta["last_modified"].isoformat())
    return tag.removeprefix("W/").strip('"')


def bucket_and_prefix(location: Location, advice: str) -> tuple[str, str]:
    bucket, _, prefix = location.rest.partition("/")
    if "@" in bucket:
        raise LoadFailed(f"{location.redacted}: credentials in the URI are ignored; set {advice}")
    if not bucket:
        raise LoadFailed(f"{location.redacted}: the bucket is missing; write {location.scheme}://bucket/path")
    return bucket, prefix


def open_bucket(
    kind: Callable[..., Any],
    name: str,
    prefix: str,
    location: Location,
    options: FetchOptions,
    *,
    config: dict[str, Any],
    endpoint: str | None,
    hint: str,
) -> ObjectStore:
    """Open a bucket with a store class of obstore, which reads the environment and files named there."""
    from obstore.exceptions import BaseError

    settings = client_options(endpoint, options)
    try:
        bucket = kind(name, config=config, client_options=settings, retry_config=RETRY_ONCE)
    except (BaseError, OSError, ValueError) as error:
        if "No CA certificates" in str(error):  # in the debug output, which is not shown
            hint = "that this machine has CA certificates: install the package ca-certificates, or set SSL_CERT_FILE"
        raise LoadFailed(f"{location.redacted}: cannot be opened ({redact_text(str(error))}); check {hint}") from error
    return ObjectStore(location, bucket, prefix, hint)


def client_options(endpoint: str | None, options: FetchOptions) -> dict[str, Any]:
    """Return client options. An http:// endpoint of the operator is allowed; a loopback endpoint bypasses proxies."""
    settings: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=options.timeout),
        "read_timeout": timedelta(seconds=options.timeout),
        "timeout": timedelta(hours=1),  # of a whole part; read_timeout bounds a stall
    }
    if endpoint and endpoint.startswith("http://"):
        settings["allow_http"] = True
    if endpoint and is_loopback_url(endpoint):
        # Only an explicit proxy disables those of the environment; the exclusion keeps it unused.
        settings |= {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "localhost,127.0.0.0/8,::1"}
    return settings
