"""A platform of microservices whose every answer a test decides. A job is a file of its name in the folder.

`start` waits for the file `gate`; while there is a file `away`, nothing succeeds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotlight.errors import PlatformError
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.registry.records import Entry, Job, PlatformStatus

PAUSE_S = 0.02


class FakePlatform(TargetService):
    def __init__(self, folder: Path) -> None:
        super().__init__("docker", {"HOME": str(folder)})
        self.folder, self.own_ports = folder, False

    def jobs(self) -> set[str]:
        return {path.name.removeprefix("made-") for path in self.folder.glob("made-*")}

    def preflight(self, job: Job) -> Job:
        return job

    def start(self, job: Job, *_: object) -> Entry:
        (self.folder / f"made-{job.id}").touch()
        while not (self.folder / "gate").exists():
            self._check("start")
            time.sleep(PAUSE_S)
        self._check("start")
        return Entry(self.name, job.network_arch, "http://localhost:1", "2026-01-01T00:00:00Z", 1)

    def status(self, job_id: str, entry: Entry) -> PlatformStatus:
        self._check("status")
        return PlatformStatus("running", job_id)

    def stop(self, job_id: str, entry: Entry) -> None:
        self._check("stop")
        (self.folder / f"made-{job_id}").unlink(missing_ok=True)

    @contextmanager
    def open_route(self, job_id: str, entry: Entry) -> Iterator[str]:
        yield entry.host_url

    def _check(self, verb: str) -> None:
        if (self.folder / "away").exists():
            raise PlatformError(f"{verb} failed: error during connect")
