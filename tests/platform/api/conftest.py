"""The control API served in this process on a port of the system's choice, over an engine that only remembers."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pilotlight.control_plane.app import make_app
from pilotlight.errors import Conflict, NotFound
from pilotlight.k8s.manifest import Manifest
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.control.service_operations import Engine
from pilotlight.targets.local.control_process_launcher import Address
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.target import Event, Key, Release, ServiceStatus, Share

TOKEN = "a-token"


class Remembering(Engine):
    """Keeps what it was told; nothing runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.kept: dict[Key, list[Release]] = {}
        self.bounds: dict[Key, Mapping[str, int] | None] = {}
        self.shares: dict[Key, Sequence[Share] | None] = {}
        self.secrets: dict[Key, Mapping[str, str]] = {}
        self.happened: list[Event] = []
        self.ended = False
        self.gone: set[str] = set()  # replicas
        self.runs_on = "local"

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        key = release.namespace, release.name
        generation = len(self.kept.get(key, ()))
        if release.expected not in (None, generation):
            raise Conflict(f"{'/'.join(key)} was changed by another deploy", "run it again")
        if not dry_run:
            self.kept.setdefault(key, []).insert(0, release)
            self.tell(key, "Applied", f"generation {generation + 1}")
        return ServiceStatus(*key, generation + 1, "Ready", "http://127.0.0.1:1/")

    async def wait_applied(self) -> None:
        """No gateway is there to be waited for."""

    def status(self, key: Key) -> ServiceStatus:
        if key not in self.kept:
            raise NotFound(f"no service {'/'.join(key)}", "platformctl list")
        return ServiceStatus(*key, len(self.kept[key]), "Ready", "http://127.0.0.1:1/", target=self.runs_on)

    def live(self, key: Key) -> list[Manifest]:
        self.status(key)
        return [Manifest(document) for document in self.kept[key][0].manifests]

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        """Of one moment: a test changes what is kept from another thread."""
        kept = self.kept.copy()
        return [
            ServiceStatus(*key, len(found), "Ready", "http://127.0.0.1:1/", target=self.runs_on)
            for key, found in kept.items()
            if namespace in (None, key[0])
        ]

    def releases(self, key: Key) -> Sequence[Release]:
        self.status(key)
        return self.kept[key]

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        self.bounds[key] = bounds
        return self.status(key)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        self.shares[key] = shares
        return self.status(key)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        found = [event for event in self.happened if key in (None, (event.namespace, event.service))]
        newer = [event for event in found if event.number > after]
        return newer[:limit] if after else newer[-limit:]

    def log_files(self, key: Key, previous: bool) -> Sequence[tuple[str, Path]]:
        self.status(key)
        return [(file.stem, file) for file in sorted(self.folder.glob("*.log")) if (file.stem in self.gone) == previous]

    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        self.secrets[key] = values

    def delete(self, key: Key) -> None:
        self.status(key)
        del self.kept[key]

    def tell(self, key: Key, reason: str, message: str) -> None:
        number = len(self.happened) + 1
        self.happened.append(Event("2026-01-01T00:00:00Z", *key, "Service/x", "Normal", reason, message, number))


@dataclass
class Served:
    """`drained` has what every shutdown asked for."""

    engine: Remembering
    port: int
    drained: list[float] = field(default_factory=list)

    @property
    def target(self) -> LocalTarget:
        return self.target_named("local")

    def target_named(self, name: str) -> LocalTarget:
        return LocalTarget(Address(0, 0, "", self.port, 0, token=TOKEN), name)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    """In a thread with a loop of its own: the client blocks, as it does in a verb."""
    served = Served(Remembering(tmp_path), 0)
    ready, end = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        from aiohttp import web

        runner = web.AppRunner(make_app(served.engine, TOKEN, served.drained.append), shutdown_timeout=5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.port = runner.addresses[0][1]
        ready.set()
        await asyncio.to_thread(end.wait)
        await runner.cleanup()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    yield served
    end.set()
    thread.join(60)
    assert not failures
    assert not thread.is_alive()
