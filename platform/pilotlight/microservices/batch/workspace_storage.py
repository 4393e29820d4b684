"""Folders of a workspace's storage, on this machine or in a bucket: list, read, write.

Reads go through media/, with its limits and pinned addresses. Writes are atomic.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.media import Limits, file_and_bucket_sources, references, ssrf_safe_client
from pilotlight.microservices.media.limits import MediaError
from pilotlight.microservices.media.references import LocalFile, StoredObject
from pilotlight.microservices.registry import secret_references
from pilotlight.microservices.registry.records import Workspace
from pilotlight.wire.shared_files import replace_file

MAX_FILES: Final = 1_000_000


def open_folder(path: str, workspace: Workspace, limits: Limits, environ: Mapping[str, str]) -> "Folder":
    """Return the folder at `path`, relative to the workspace or a full URI within it.

    Names in it are relative, with `/` between their parts; `read` raises NotFound, or PlatformError with the reason.
    """
    base = workspace.base
    inside = relative(path, base)
    if "://" not in base:
        return LocalFolder(Path(base), inside, limits)
    scheme, _, rest = base.partition("://")
    if scheme not in references.OBJECTS:
        raise UsageError(f"workspace = {base}: a batch job reads from a folder, s3:// or az://")
    bucket, _, prefix = rest.partition("/")
    prefix = "/".join(filter(None, (prefix, inside)))
    return BucketFolder(references.OBJECTS[scheme], bucket, prefix, workspace, limits, environ)


def relative(path: str, base: str) -> str:
    """Return the path relative to the workspace. Raise for one outside of it."""
    plain = path.removeprefix("file://")
    if plain == base or plain.startswith(f"{base}/"):
        plain = plain[len(base) :]
    elif "://" in plain or plain.startswith("/"):
        raise UsageError(f"{path} must be a folder or file of the workspace {base}")
    parts = [part for part in plain.split("/") if part not in {"", "."}]
    if ".." in parts or any("\0" in part or "\\" in part for part in parts):
        raise UsageError(f"{path} must not have .. in it")
    return "/".join(parts)


def check_path(path: str, workspace: Workspace) -> None:
    """Raise for a path that is, or leads by a link, outside of the workspace."""
    base = workspace.base
    inside = relative(path, base)
    if "://" not in base:
        _locate(Path(base).resolve(), inside)


def check_exists(inputs: str, workspace: Workspace) -> None:
    """Raise if a local folder does not exist. Buckets have no folders to check."""
    base = workspace.base
    if "://" in base:
        return
    if not Path(base).is_dir():
        raise UsageError(f"workspace = {base}: no such folder; check its name, or create it")
    if not (Path(base) / relative(inputs, base)).is_dir():
        raise UsageError(f"inputs = {inputs}: there is no such folder in the workspace {base}; check its name")


def _locate(base: Path, inside: str) -> Path:
    """Return the folder without links. Raise where a link is outside of the workspace."""
    path = (base / inside).resolve()
    if not path.is_relative_to(base):
        raise UsageError(f"{inside} is outside of the workspace {base} by a link")
    return path


class LocalFolder:
    """A folder of this machine. `uri` followed by a file name is a reference to that file."""

    def __init__(self, base: Path, inside: str, limits: Limits) -> None:
        self._base = base.resolve()
        self._limits = limits
        self._path = _locate(self._base, inside)
        self.uri = str(self._path)

    def names(self) -> list[str]:
        """Return the names of files. Symlinks are skipped: they may lead out of the workspace."""
        names = list[str]()
        for folder, _, files in os.walk(self._path):
            here = Path(folder)
            plain = (here / name for name in files if not (here / name).is_symlink() and not name.startswith("."))
            names.extend(path.relative_to(self._path).as_posix() for path in plain)
            _check_count(len(names), self.uri)
        return sorted(names)

    def read(self, name: str) -> bytes:
        if not (self._path / name).is_file():
            raise NotFound(f"{self._path / name} does not exist")
        limits = Limits(roots=(str(self._base),), bytes=self._limits.bytes, total_bytes=self._limits.total_bytes)
        budget = ssrf_safe_client.FetchBudget(limits, monotonic())
        try:
            return file_and_bucket_sources.read(LocalFile(str(self._path / name)), budget)
        except MediaError as error:
            raise PlatformError(f"{name} {error.message}") from error

    def write(self, name: str, content: bytes | Path) -> None:
        path = self._path / name
        try:
            if not path.parent.resolve().is_relative_to(self._base):
                raise PlatformError(f"{path} is outside of the workspace")
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content, mode=0o666, durable=True)
        except OSError as error:
            raise PlatformError(f"{path} cannot be written: {error.strerror}") from error


class BucketFolder:
    def __init__(
        self, scheme: str, bucket: str, prefix: str, workspace: Workspace, limits: Limits, environ: Mapping[str, str]
    ) -> None:
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix.strip("/")
        self._workspace, self._limits, self._environ = workspace, limits, environ
        self.uri = f"{scheme}://{bucket}/{self._prefix}"
        try:
            if workspace.endpoint:  # obstore cannot pin the checked address
                ssrf_safe_client.check_address(references.parse_web(workspace.endpoint), limits, trusted=True)
            credentials = secret_references.values(workspace, environ)
            self._store = file_and_bucket_sources.open_bucket(bucket, scheme, workspace, credentials)
        except MediaError as error:
            raise PlatformError(f"the storage {error.message}") from error

    def names(self) -> list[str]:
        import obstore

        skipped = len(self._prefix) + 1 if self._prefix else 0
        names = list[str]()
        with self._translated_errors():
            for page in obstore.list(self._store, prefix=self._prefix or None):
                names.extend(meta["path"][skipped:] for meta in page if meta["size"] or not meta["path"].endswith("/"))
                _check_count(len(names), self.uri)
        return sorted(name for name in names if name and not name.rpartition("/")[2].startswith("."))

    def exists(self) -> bool:
        """Return whether it has an object, or is one."""
        import obstore

        with self._translated_errors():
            if any(obstore.list(self._store, prefix=self._prefix or None, chunk_size=1)):
                return True
        try:
            with self._translated_errors():
                return bool(obstore.head(self._store, self._prefix))
        except NotFound:
            return False

    def read(self, name: str) -> bytes:
        stored = StoredObject(self._scheme, self._bucket, self._key(name))
        try:
            address = file_and_bucket_sources.sign_url(stored, self._workspace, self._environ)
            return ssrf_safe_client.get(address, ssrf_safe_client.FetchBudget(self._limits, monotonic()), trusted=True)
        except MediaError as error:
            kind = NotFound if error.status == 404 else PlatformError
            raise kind(f"{name} {error.message}") from error

    def write(self, name: str, content: bytes | Path) -> None:
        import obstore

        with self._translated_errors():
            obstore.put(self._store, self._key(name), content)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate obstore's errors, which may contain signatures; some have the HTTP status only in their text."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            match = re.search(r"status code: (\d{3})\b", str(error))
            status = match[1] if match else ""
            if status in ("401", "403") or isinstance(error, PermissionDeniedError | UnauthenticatedError):
                message = "access was refused; check the workspace's credentials"
                raise PlatformError(f"{self.uri}: {message}") from error
            if status == "404" or isinstance(error, FileNotFoundError):
                raise NotFound(f"{self.uri}: the bucket does not exist; check its name and the endpoint") from error
            message = "no connection (the store cannot be reached); check the workspace's endpoint"
            raise PlatformError(f"{self.uri}: {message}") from error


Folder = LocalFolder | BucketFolder


def _check_count(count: int, uri: str) -> None:
    if count > MAX_FILES:
        raise UsageError(f"{uri} has more than {MAX_FILES} files; split it into several jobs")
