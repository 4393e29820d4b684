"""A batch job as it is stored on this machine: its data types, and a folder with job, progress, process and entry.

Files are written atomically. They have no secrets: credentials are references, resolved in the job's process.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.registry.records import Entry, Isolation, Workspace
from pilotlight.microservices.registry.registry_file import file_lock
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.process_identity import Identity, identify
from pilotlight.wire.shared_files import replace_file

State = Literal["pending", "loading", "running", "done", "failed", "canceled"]
FINAL: Final = frozenset({"done", "failed", "canceled"})
T = TypeVar("T")
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")


class Batch(Struct, frozen=True):
    """One job. `inputs` and `outputs` are folders of the workspace, `labels` a file of it. It has no secrets."""

    id: str
    network_arch: str
    model_path: str
    workspace: Workspace
    inputs: str
    outputs: str
    parameters: Mapping[str, Any] = {}  # of every request, in addition to the file
    labels: str = ""  # score the results with it
    platform: str = "local"
    options: Mapping[str, str] = {}
    num_gpus: int = 1
    declared: str = ""  # text of the model's parameters.yaml
    org: str = ""  # owner of the workspace, whose folders it must lie in; empty: the operator
    isolation: Isolation = ""
    kind: str = ""  # of a network of one's own


class Counts(Struct, frozen=True, kw_only=True):
    """Files of a job. `done`: with a result; `failed`: with an error among them; `skipped`: no inputs."""

    total: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    message: str = ""
    started_at: str = ""
    updated_at: str = ""
    metrics: Mapping[str, Any] | None = None


class Progress(Counts, frozen=True):
    job_id: str
    state: State

    @property
    def percent(self) -> float:
        return 100.0 * self.done / self.total if self.total else (100.0 if self.state == "done" else 0.0)


class Outcome(Struct, frozen=True, omit_defaults=True):
    """Result of one file, in its own file and in results.jsonl. `job` is the id of the job that wrote it."""

    file: str
    status: Literal["completed", "error"]
    results: Mapping[str, Any] | None = None
    error: str = ""
    job: str = ""


class JobFolder:
    """State folder of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "runner.log"
        self.spool = folder / "results.jsonl"

    def batch(self) -> Batch:
        batch = self._read("job.json", Batch)
        if batch is None:
            raise NotFound(f"no batch job {self.folder.name} is known", "platformctl microservice batch list")
        return batch

    def progress(self) -> Progress:
        return self._read("progress.json", Progress) or Progress(self.folder.name, "pending")

    def save_progress(self, progress: Progress) -> Progress:
        """Save the progress as that of now, and return it."""
        updated = replace(progress, updated_at=utc_now())
        self._write("progress.json", updated)
        return updated

    def create(self, batch: Batch) -> None:
        self.folder.mkdir(mode=0o700, parents=True)
        self._write("job.json", batch)

    def runner(self) -> Identity | None:
        return self._read("runner.json", Identity)

    def save_runner(self, pid: int | None) -> None:
        self._write("runner.json", None if pid is None else identify(pid) or (pid, "", 0))

    def entry(self) -> Entry | None:
        return self._read("entry.json", Entry)

    def save_entry(self, entry: Entry | None) -> None:
        self._write("entry.json", entry)

    @property
    def cancelled(self) -> bool:
        return (self.folder / "cancel").exists()

    def cancel(self, cancelled: bool = True) -> None:
        self._write("cancel", cancelled or None)

    def exclusive(self, name: str = "lock") -> AbstractContextManager[bool]:
        """Lock of the job's process: a resumed one waits until its predecessor has ended."""
        return file_lock(self.folder / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.folder / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PlatformError(f"{self.folder / name} cannot be read: {error}") from error

    def _write(self, name: str, value: Any) -> None:
        """Replace a file, or remove it where there is no value."""
        if value is None:
            (self.folder / name).unlink(missing_ok=True)
        else:
            replace_file(self.folder / name, msgspec.json.encode(value))


def job_folder(home: Home, job_id: str) -> JobFolder:
    if not _ID.fullmatch(job_id):
        raise NotFound(f"{job_id[:80]!r} is no job id")
    return JobFolder(home.root / "batch" / job_id)
