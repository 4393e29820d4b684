"""Folders of a workspace's storage, on this machine or in a bucket: list, read, write. The edge of a batch job.

Reading goes through media/, with its limits and its pinned addresses. Writing puts a file in place whole: a crash
leaves the file before or the file after.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, Protocol
from uuid import uuid4

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.media import Limits, local, objects, references, web
from pilotlight.microservices.media.references import LocalFile, StoredObject
from pilotlight.microservices.media.refusals import Refusal
from pilotlight.microservices.model import Workspace

MOST_FILES: Final = 1_000_000


class Folder(Protocol):
    """Names are relative, with `/` between their parts."""

    shown: str  # with the name of a file behind it, a reference to that file

    def names(self) -> list[str]:
        """Of all files below it, sorted."""

    def read(self, name: str) -> bytes:
        """Raises NotFound, or PlatformError with the reason."""

    def write(self, name: str, content: bytes | Path) -> None:
        """`content`: the bytes, or the file of this machine that has them."""


def opened(path: str, workspace: Workspace, limits: Limits, environ: Mapping[str, str]) -> Folder:
    """`path` is within the workspace, by itself or by its whole address."""
    base = workspace.uri.rstrip("/").removeprefix("file://")
    inside = relative(path, base)
    if "://" not in base:
        return LocalFolder(Path(base), inside, limits)
    scheme, _, rest = base.partition("://")
    if scheme not in references.OBJECTS:
        raise UsageError(f"workspace = {base}: a batch job reads from a folder, s3:// or az://")
    bucket, _, prefix = rest.partition("/")
    whole = "/".join(filter(None, (prefix, inside)))
    return BucketFolder(references.OBJECTS[scheme], bucket, whole, workspace, limits, environ)


def relative(path: str, base: str) -> str:
    """The part below the workspace; raises for a path that leads out of it."""
    plain = path.removeprefix("file://") if path.startswith("file://") else path
    if plain == base or plain.startswith(f"{base}/"):
        plain = plain[len(base) :]
    elif "://" in plain or plain.startswith("/"):
        raise UsageError(f"{path} must be a folder or file of the workspace {base}")
    parts = [part for part in plain.split("/") if part not in {"", "."}]
    if ".." in parts or any("\0" in part or "\\" in part for part in parts):
        raise UsageError(f"{path} must not have .. in it")
    return "/".join(parts)


def check_there(inputs: str, workspace: Workspace) -> None:
    """Of storage on this machine: a name that is mistyped is no empty folder. A bucket has no folders to look for."""
    base = workspace.uri.rstrip("/").removeprefix("file://")
    if "://" in base:
        return
    if not Path(base).is_dir():
        raise UsageError(f"workspace = {base}: there is no such folder; check its name, or make it")
    if not (Path(base) / relative(inputs, base)).is_dir():
        raise UsageError(f"inputs = {inputs}: there is no such folder in the workspace {base}; check its name")


class LocalFolder:
    def __init__(self, base: Path, inside: str, limits: Limits) -> None:
        self._base, self._inside = base.resolve(), inside
        self._limits = limits
        self._path = self._base / inside
        self.shown = str(self._path)

    def names(self) -> list[str]:
        """Links are not followed: they may lead out of the workspace."""
        found = list[str]()
        for folder, _, files in os.walk(self._path):
            here = Path(folder)
            plain = (here / name for name in files if not (here / name).is_symlink() and not name.startswith("."))
            found.extend(path.relative_to(self._path).as_posix() for path in plain)
            _bounded(len(found), self.shown)
        return sorted(found)

    def read(self, name: str) -> bytes:
        if not (self._path / name).is_file():
            raise NotFound(f"{self._path / name} is not there")
        limits = Limits(roots=(str(self._base),), bytes=self._limits.bytes, total_bytes=self._limits.total_bytes)
        try:
            return local.read(LocalFile(str(self._path / name)), web.Allowance(limits, monotonic()))
        except Refusal as error:
            raise PlatformError(f"{name} {error.told}") from error

    def write(self, name: str, content: bytes | Path) -> None:
        path = self._path / name
        beside = path.with_name(f".{path.name[:100]}.{uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self._base):
                raise PlatformError(f"{path} leads out of the workspace")
            with beside.open("xb") as file:
                _pour(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise PlatformError(f"{path} cannot be written: {error.strerror}") from error


def _pour(content: bytes | Path, file: BinaryIO) -> None:
    if isinstance(content, bytes):
        file.write(content)
        return
    with content.open("rb") as source:
        shutil.copyfileobj(source, file)


class BucketFolder:
    def __init__(
        self, scheme: str, bucket: str, prefix: str, workspace: Workspace, limits: Limits, environ: Mapping[str, str]
    ) -> None:
        self._scheme, self._bucket, self._prefix = scheme, bucket, prefix.strip("/")
        self._workspace, self._limits, self._environ = workspace, limits, environ
        self.shown = f"{scheme}://{bucket}/{self._prefix}"
        self._store = self._opened()

    def _opened(self) -> Any:
        """The endpoint is looked at before anything is sent there; who lists and writes cannot pin it."""
        try:
            if self._workspace.endpoint:
                address = references.web(self._workspace.endpoint)
                web.check_listed(address, self._limits, trusted=True)
                web.checked(address, self._limits)
            return objects.bucket(self._bucket, self._scheme, self._workspace, self._environ)
        except Refusal as error:
            raise PlatformError(f"the storage {error.told}") from error

    def names(self) -> list[str]:
        import obstore

        skipped = len(self._prefix) + 1 if self._prefix else 0
        found = list[str]()
        for page in self._said(lambda: obstore.list(self._store, prefix=self._prefix or None)):
            found.extend(meta["path"][skipped:] for meta in page if meta["size"] or not meta["path"].endswith("/"))
            _bounded(len(found), self.shown)
        return sorted(name for name in found if name and not name.rpartition("/")[2].startswith("."))

    def read(self, name: str) -> bytes:
        stored = StoredObject(self._scheme, self._bucket, self._key(name))
        try:
            address = objects.signed(stored, self._workspace, self._environ)
            return web.get(address, web.Allowance(self._limits, monotonic()), trusted=True)
        except Refusal as error:
            kind = NotFound if "is not in the store" in error.told else PlatformError
            raise kind(f"{name} {error.told}") from error

    def write(self, name: str, content: bytes | Path) -> None:
        import obstore

        for _ in self._said(lambda: iter([obstore.put(self._store, self._key(name), content)])):
            pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _said(self, call: Any) -> Iterator[Any]:
        """What obstore gives, with its failures in our words and without what it was signed with."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield from call()
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PlatformError(f"{self.shown}: access was refused; check the workspace's credentials") from error
        except FileNotFoundError as error:
            raise NotFound(f"{self.shown}: the bucket is not there; check its name and the endpoint") from error
        except BaseError as error:
            raise _worded(self.shown, str(error)) from error


def _worded(shown: str, message: str) -> PlatformError:
    """obstore tells the status in its text alone, beside addresses, times and ids that have digits too."""
    found = re.search(r"status code: (\d{3})\b", message)
    status = found[1] if found else ""
    if status in ("401", "403"):
        return PlatformError(f"{shown}: access was refused; check the workspace's credentials")
    if status == "404":
        return NotFound(f"{shown}: the bucket is not there; check its name and the endpoint")
    return PlatformError(f"{shown}: no connection (the store cannot be reached); check the workspace's endpoint")


def _bounded(count: int, shown: str) -> None:
    if count > MOST_FILES:
        raise UsageError(f"{shown} has more than {MOST_FILES} files; split it into several jobs")
