"""The registry file: running microservices by job id, and `latest`, the one started last.

Its path is the one of run-inference-service scripts. Processes may update it concurrently: each update reads it under
a file lock and replaces it by a rename. Entries and fields of other writers are preserved.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from pilotlight.errors import PlatformError
from pilotlight.microservices.registry.records import ALIASES, Entry
from pilotlight.wire.shared_files import replace_file, try_lock

ENV_PATH: Final = "PILOTLIGHT_MICROSERVICE_REGISTRY"
DEFAULT_PATH: Final = "/tmp/tao-inf-ms-state.json"  # noqa: S108 - the scripts' path; owner, links and mode are checked
LATEST: Final = "latest"
WORDS: Final = {name: word for word, name in ALIASES.items()}  # for platforms, where the scripts' differ from ours


class RegistryState(Struct, frozen=True):
    entries: Mapping[str, Entry]
    latest: str = ""


class Registry:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> RegistryState:
        """Return the current state. It needs no lock, since writers rename."""
        return _state(self._load())

    def add(self, job_id: str, entry: Entry) -> None:
        """Add an entry, as the latest unless it is closed. Empty fields are written too: scripts read them by name."""
        with self._transaction() as documents:
            documents[job_id] = {**to_builtins(entry), "platform": WORDS.get(entry.platform, entry.platform)}
            if not entry.closed:
                del documents[job_id]["closed"]
                documents[LATEST] = job_id

    def remove(self, job_id: str) -> bool:
        """Remove an entry; return whether it existed. `latest` becomes the last started of the others."""
        with self._transaction() as documents:
            existed = documents.pop(job_id, None) is not None
            entries = {name: entry for name, entry in _state(documents).entries.items() if not entry.closed}
            if documents.get(LATEST) not in entries:
                documents.pop(LATEST, None)
            if entries and LATEST not in documents:
                documents[LATEST] = max(entries, key=lambda name: entries[name].started_at)
        return existed

    @contextmanager
    def _transaction(self) -> Iterator[dict[str, Any]]:
        with file_lock(self.path.with_name(self.path.name + ".lock")):
            documents = self._load()
            yield documents
            try:
                replace_file(self.path, json.dumps(documents, indent=2).encode() + b"\n", durable=True)
            except OSError as error:
                raise _registry_error(self.path, f"cannot be written: {error.strerror}") from None

    def _load(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _registry_error(self.path, f"cannot be opened: {error.strerror}") from None
        with open(descriptor, "rb") as file:
            _check_owner(self.path, os.fstat(descriptor))
            text = file.read()
        try:
            documents = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise _registry_error(self.path, f"is not JSON: {error}") from None
        if not isinstance(documents, dict):
            raise _registry_error(self.path, "is not an object")
        return documents


def registry(environ: Mapping[str, str]) -> Registry:
    return Registry(Path(environ.get(ENV_PATH) or DEFAULT_PATH).expanduser().absolute())


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file lock; yield whether it was acquired. The kernel releases it when the process ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = try_lock(path, wait=wait)
    except OSError as error:
        raise _registry_error(path, f"cannot be opened: {error.strerror}") from None
    with file or nullcontext():
        yield file is not None


def _state(documents: Mapping[str, Any]) -> RegistryState:
    """Decode the entries, without those of other writers that are invalid."""
    entries = {}
    for name, document in documents.items():
        if name != LATEST and isinstance(document, dict):
            with suppress(ValidationError):
                entry = convert({**document, "started_at": str(document.get("started_at", ""))}, Entry, strict=False)
                entries[name] = replace(entry, platform=ALIASES.get(entry.platform, entry.platform))
    latest = documents.get(LATEST)
    return RegistryState(entries, latest if isinstance(latest, str) else "")


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Raise unless it is this user's regular file: in /tmp other users could have created it."""
    if not stat.S_ISREG(status.st_mode):
        raise _registry_error(path, "is not a regular file")
    if status.st_uid != os.getuid():
        raise _registry_error(path, "belongs to another user")
    if status.st_mode & 0o022:
        raise _registry_error(path, "is writable by others; run chmod 600")


def _registry_error(path: Path, what: str) -> PlatformError:
    return PlatformError(f"the registry {path} {what}", f"{ENV_PATH} names another file")
