"""The registry file: which microservices there are and where, by job id, with `latest` for the one started last.

It lies where run-inference-service scripts look for it, and any number of processes may change it at once: each change
is made under a lock beside it, on what is there at that moment, and put in place by a rename. Entries and fields that
others have written are kept as they are.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from msgspec import Struct, ValidationError, convert, to_builtins

from pilotlight.errors import PlatformError
from pilotlight.microservices.model import Entry

ENV_PATH: Final = "PILOTLIGHT_MICROSERVICE_REGISTRY"
DEFAULT_PATH: Final = "/tmp/tao-inf-ms-state.json"  # noqa: S108 - where the scripts look; owner, links and mode are checked
LATEST: Final = "latest"


class State(Struct, frozen=True):
    entries: Mapping[str, Entry]
    latest: str = ""


class Registry:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> State:
        """A moment's state; a rename makes it whole, so no lock is needed."""
        return _state(self._load())

    def add(self, job_id: str, entry: Entry) -> None:
        """It becomes the latest. Every field is written, also one that has no value: scripts ask for it by name."""
        with self._changing() as documents:
            documents[job_id] = to_builtins(entry)
            documents[LATEST] = job_id

    def remove(self, job_id: str) -> bool:
        """Whether it was there. `latest` passes to the one that was started last of those that stay."""
        with self._changing() as documents:
            there = documents.pop(job_id, None) is not None
            left = _state(documents).entries
            if documents.get(LATEST) not in left:
                documents.pop(LATEST, None)
            if left and LATEST not in documents:
                documents[LATEST] = max(left, key=lambda name: left[name].started_at)
        return there

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with locked(self.path.with_name(self.path.name + ".lock")):
            documents = self._load()
            yield documents
            self._store(documents)

    def _load(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unfit(self.path, f"cannot be opened: {error.strerror}") from None
        with open(descriptor, "rb") as file:
            _check_own(self.path, os.fstat(descriptor))
            text = file.read()
        try:
            documents = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise _unfit(self.path, f"is no JSON: {error}") from None
        if not isinstance(documents, dict):
            raise _unfit(self.path, "holds no object")
        return documents

    def _store(self, documents: Mapping[str, Any]) -> None:
        beside = self.path.with_name(f".{self.path.name}.{uuid4().hex}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(beside, flags, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # whatever the umask takes away
                file.write(json.dumps(documents, indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, self.path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(beside)
            raise _unfit(self.path, f"cannot be written: {error.strerror}") from None


def registry(environ: Mapping[str, str]) -> Registry:
    return Registry(Path(environ.get(ENV_PATH) or DEFAULT_PATH).expanduser().absolute())


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether the lock was had; it goes with the process that holds it, however that ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unfit(path, f"cannot be opened: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _state(documents: Mapping[str, Any]) -> State:
    """Without what is no entry: others may have written it."""
    entries = {}
    for name, document in documents.items():
        if name != LATEST and isinstance(document, dict):
            with suppress(ValidationError):
                known = {**document, "started_at": str(document.get("started_at", ""))}
                entries[name] = convert(known, Entry, strict=False)
    latest = documents.get(LATEST)
    return State(entries, latest if isinstance(latest, str) else "")


def _check_own(path: Path, found: os.stat_result) -> None:
    """In a folder that all may write to, anybody can have laid it there."""
    if not stat.S_ISREG(found.st_mode):
        raise _unfit(path, "is no plain file")
    if found.st_uid != os.getuid():
        raise _unfit(path, "belongs to another user")
    if found.st_mode & 0o022:
        raise _unfit(path, "can be written by others; chmod 600 closes it")


def _unfit(path: Path, what: str) -> PlatformError:
    return PlatformError(f"the registry {path} {what}", f"{ENV_PATH} names another file")
