"""The embedded platform as a person asks it: deploy, look, scale, split, delete. The control API stands on this.

Every method but `confirmed` and `query` returns at once. What it changes is stored first; what follows from it is the
machinery's, and shows in `status` and events.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.local import access_rules, peers, restoring, statuses
from pilotlight.targets.local.canaries import Canaries
from pilotlight.targets.local.chronicle import utc
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.interpret import check_queries, revisions_of
from pilotlight.targets.local.machinery import EngineSettings, Machinery
from pilotlight.targets.local.model import ServiceSpec
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.live import live_manifests
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import Event, Key, Release, Sample, ServiceStatus, Share

__all__ = ["Engine", "EngineSettings"]

Json = Any
CONFIRMED_S: Final = 5.0  # a gateway that is being replaced takes up to that long


class Engine:
    """Used from one event loop only."""

    def __init__(self, home: Home, settings: EngineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.home = home
        self.settings = settings
        self.store = Store.open(home.database)
        self.machinery = Machinery(home, settings, self.store, clock)
        self._tell = self.machinery.chronicle.tell
        self.canaries = Canaries(self.store, self._tell, self.machinery.signals.tried)
        self._clock = clock

    async def start(self) -> None:
        await self.machinery.start()

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """With `stop_all` nothing of the platform runs afterwards; without, replicas and gateway live on."""
        await self.machinery.close(stop_all=stop_all, drain_s=drain_s)
        self.store.close()

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        """Raises Conflict when the service is not at `release.expected`, PlatformError for what cannot run here."""
        key = (release.namespace, release.name)
        statuses.check_name(key)
        stored = self.store.service(key)
        overrides = {} if reset or stored is None else stored.overrides
        spec = restoring.specified(release.manifests, overrides)
        access_rules.check(spec.access)
        peers.check(spec)
        if not self.settings.prometheus:
            check_queries(spec)
        if dry_run:
            return self._status(self._made(key, stored.generation if stored else 0, spec))
        generation = self.store.apply(release, revisions_of(release.manifests), utc(), reset)
        run = self._taken_over(key, generation, spec)
        run.overrides = overrides
        self._tell(key, f"Service/{key[1]}", "Deployed", f"generation {generation}: {release.note or 'deploy'}")
        return self._settled(run)

    def _taken_over(self, key: Key, generation: int, spec: ServiceSpec) -> ServiceRun:
        runs, now = self.machinery.runs, self._clock()
        run = runs.get(key)
        if run is None or run.deleting or run.unreadable:
            run = runs[key] = self._made(key, generation, spec)
            self.machinery.ports.open(run)
        elif generation != run.generation:
            run.update(generation, spec, now)
            self.machinery.ports.open(run)
        run.spec = spec  # without a new release, what was set by hand may be gone
        for workload in spec.workloads:
            run.know(workload.revision, now)
        return run

    def _made(self, key: Key, generation: int, spec: ServiceSpec) -> ServiceRun:
        run = ServiceRun(key, generation, spec, self.settings.zero_grace_s)
        run.update(generation, spec, self._clock())
        run.history.clear()
        return run

    def status(self, key: Key) -> ServiceStatus:
        return self._status(self._run(key))

    def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return [self._status(run) for key, run in sorted(self.machinery.runs.items()) if namespace in (None, key[0])]

    def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        stored = self.store.service(key)
        if stored is None or key not in self.machinery.runs:
            return []
        return live_manifests(stored, self.status(key))

    def releases(self, key: Key) -> Sequence[Release]:
        self._run(key)
        return self.store.releases(key)

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        run = self._readable(key)
        for workload, _ in run.spec.entry:
            kept = {name: value for name, value in self._override(run, workload).items() if name == "traffic"}
            self._set_overrides(run, workload, {**kept, **(bounds or {})})
        told = ", ".join(f"{name} {value}" for name, value in (bounds or {}).items()) or "as the document says"
        self._tell(key, f"Service/{key[1]}", "Scaled", f"by hand: {told}")
        return self._settled(run)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        run = self._readable(key)
        (workload, _), *others = run.spec.entry
        if shares and not others and run.spec.workload(workload).mode != "serverless":
            message = f"{'/'.join(key)} is a Deployment with one side; a canary gives it a second"
            raise UsageError(message, f"platformctl canary start {key[1]} -f FILE --percent 10")
        _check_shares(run, shares or ())
        for side, written in tuple(run.overrides.items()):  # also of a side that a promotion has ended
            self._set_overrides(run, side, {name: value for name, value in written.items() if name != "traffic"})
        if shares:
            given = [msgspec.to_builtins(share) for share in shares]
            self._set_overrides(run, workload, {**self._override(run, workload), "traffic": given})
        told = ", ".join(f"{share.revision} {share.percent} %" for share in shares or ()) or "as the document says"
        self._tell(key, f"Service/{key[1]}", "TrafficChanged", f"by hand: {told}")
        return self._settled(run)

    async def query(self, promql: str) -> Sequence[Sample]:
        """Raises PlatformError where it cannot be answered."""
        return await self.machinery.query(promql)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        return self.store.events(key, after, limit)

    def log_files(self, key: Key, replica: str, previous: bool) -> Sequence[tuple[str, Path]]:
        """(replica id, file), newest replica last; `previous`: of replicas that have ended."""
        run = self._run(key)
        living = {found.id for found in self.machinery.fleet.living(run)}
        files = sorted((self.home.logs / key[0] / key[1]).glob("*.log"), key=lambda file: file.stat().st_mtime)
        return [(file.stem, file) for file in files if replica in ("", file.stem) and (file.stem in living) != previous]

    def delete(self, key: Key) -> None:
        run = self._run(key)
        self.store.begin_delete(key)
        run.deleting = True
        self._tell(key, f"Service/{key[1]}", "Deleted", "its replicas finish what they have")
        self.machinery.settle(run)

    async def confirmed(self) -> None:
        """Until the gateway follows all that was said before, or does not answer in time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.machinery.confirmed(), CONFIRMED_S)

    def _run(self, key: Key) -> ServiceRun:
        found = self.machinery.runs.get(key)
        if found is None:
            raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
        return found

    def _readable(self, key: Key) -> ServiceRun:
        found = self._run(key)
        if found.unreadable:
            raise PlatformError(f"{'/'.join(key)}: {found.unreadable}", "deploy it again, or delete it")
        return found

    def _status(self, run: ServiceRun) -> ServiceStatus:
        return self.machinery.status(run)

    def _settled(self, run: ServiceRun) -> ServiceStatus:
        self.machinery.settle(run)
        return self._status(run)

    def _override(self, run: ServiceRun, workload: str) -> Mapping[str, Json]:
        return run.overrides.get(workload) or {}

    def _set_overrides(self, run: ServiceRun, workload: str, values: Mapping[str, Json]) -> None:
        self.store.set_overrides(run.key, workload, values or None)
        stored = self.store.service(run.key)
        assert stored is not None
        run.overrides = stored.overrides
        run.spec = restoring.specified(stored.manifests, stored.overrides)


def _check_shares(run: ServiceRun, shares: Sequence[Share]) -> None:
    known = {*(name for workload, _ in run.spec.entry for name in run.revisions_of(workload)), "latest"}
    unknown = [share.revision for share in shares if share.revision not in known]
    if unknown:
        raise NotFound(f"no revision is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if shares and sum(share.percent for share in shares) != 100:
        raise UsageError(f"the shares add up to {sum(share.percent for share in shares)}, must be 100")
