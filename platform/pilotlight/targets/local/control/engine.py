"""Deploy, scale, split, delete.

Canary records of the embedded platform: stored, reported as events, their services' metrics scraped.

The control process only stores them. The canary controller (pilotlight.canary.controller) runs in a thread of its own, is
notified through `on_change`, and uses the control API like any client.

Operations of the embedded platform behind the control API: deploy, status, scale, traffic split, delete.

Every method but `wait_applied` and `query` returns at once. A change is stored first, then the reconciler acts on it;
progress shows in `status` and in events.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from pilotlight.canary import state_store
from pilotlight.canary.events import canary_events
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.gateway import access_rules
from pilotlight.targets.local.background_tasks import utc
from pilotlight.targets.local.control import persistence
from pilotlight.targets.local.control import status as control_status
from pilotlight.targets.local.control.reconciler import EngineSettings, Reconciler
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.manifests import service_discovery
from pilotlight.targets.local.manifests.interpret import check_queries, revisions_of
from pilotlight.targets.local.manifests.service_spec import ServiceSpec
from pilotlight.targets.local.store.releases import live_manifests
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import CanaryRecord, Event, Key, Release, Sample, ServiceStatus, Share

RecordEvent = Callable[..., None]  # EventRecorder.record


class CanaryRecords:
    """`services` is updated in place: those with a running canary, whose replicas are scraped."""

    def __init__(self, store: Store, record_event: RecordEvent, services: set[Key]) -> None:
        self._store, self._record_event, self._services = store, record_event, services
        self.on_change: Callable[[], None] = lambda: None  # called after every change
        for record in store.canaries():
            self._track(record)

    @property
    def any_running(self) -> bool:
        """Whether a canary is in progress."""
        return bool(self._services)

    def list(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return [each for each in self._store.canaries() if namespace in (None, each.namespace)]

    def get(self, key: Key) -> CanaryRecord | None:
        return self._store.canary(key)

    def save(self, key: Key, state: str, version: str) -> CanaryRecord:
        """Store a canary. Raise Conflict if it is not at `version`, NotFound without such a service."""
        before, after = (
            state_store.decode_history(self.get(key)),
            state_store.decode_history(CanaryRecord(*key, state, version)),
        )
        record = self._store.save_canary(key, state, version)
        for event in canary_events(before, after):
            self._record_event(key, f"Revision/{event.revision}", event.reason, event.message, event.type)
        self._track(record)
        self.on_change()
        return record

    def _track(self, record: CanaryRecord) -> None:
        """Scrape the service while its canary runs; an unreadable record counts as none."""
        try:
            runs = state_store.running_canary(state_store.decode_history(record)) is not None
        except PlatformError:
            runs = False
        (self._services.add if runs else self._services.discard)(record.key)


__all__ = ["Engine", "EngineSettings"]

Json = Any
APPLY_TIMEOUT_S: Final = 5.0  # replacing a gateway takes up to that long


class Engine:
    """Used from one event loop only."""

    def __init__(self, home: Home, settings: EngineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.home = home
        self.settings = settings
        self.store = Store.open(home.database)
        self.reconciler = Reconciler(home, settings, self.store, clock)
        self._record_event = self.reconciler.events.record
        self.canaries = CanaryRecords(self.store, self._record_event, self.reconciler.metrics.canary_services)
        self._clock = clock

    async def start(self) -> None:
        await self.reconciler.start()

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """Close the engine; with `stop_all` end replicas and gateway too, else leave them running."""
        await self.reconciler.close(stop_all=stop_all, drain_s=drain_s)
        self.store.close()

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        """Deploy a release.

        Raise Conflict if the service is not at `release.expected`, PlatformError for what cannot run on this machine.
        """
        key = (release.namespace, release.name)
        control_status.check_name(key)
        stored = self.store.service(key)
        overrides = {} if reset or stored is None else stored.overrides
        spec = persistence.effective_spec(release.manifests, overrides)
        access_rules.check(spec.access)
        service_discovery.check(spec)
        if not self.settings.prometheus:
            check_queries(spec)
        if dry_run:
            return self.reconciler.status(self._new_run(key, stored.generation if stored else 0, spec))
        generation = self.store.apply(release, revisions_of(release.manifests), utc(), reset)
        run = self._update_run(key, generation, spec)
        run.overrides = overrides
        self._record_event(key, f"Service/{key[1]}", "Deployed", f"generation {generation}: {release.note or 'deploy'}")
        return self._reconcile(run)

    def _update_run(self, key: Key, generation: int, spec: ServiceSpec) -> ServiceRun:
        runs, now = self.reconciler.runs, self._clock()
        run = runs.get(key)
        if run is None or run.deleting or run.unreadable:
            run = runs[key] = self._new_run(key, generation, spec)
            self.reconciler.ports.open(run)
        elif generation != run.generation:
            run.update(generation, spec, now)
            self.reconciler.ports.open(run)
        run.spec = spec  # an unchanged generation may still have lost its overrides (`reset`)
        for workload in spec.workloads:
            run.add_revision(workload.revision, now)
        return run

    def _new_run(self, key: Key, generation: int, spec: ServiceSpec) -> ServiceRun:
        run = ServiceRun(key, generation, spec, self.settings.zero_grace_s)
        run.update(generation, spec, self._clock())
        run.history.clear()
        return run

    def status(self, key: Key) -> ServiceStatus:
        return self.reconciler.status(self._run(key))

    def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return [
            self.reconciler.status(run)
            for key, run in sorted(self.reconciler.runs.items())
            if namespace in (None, key[0])
        ]

    def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        stored = self.store.service(key)
        if stored is None or key not in self.reconciler.runs:
            return []
        return live_manifests(stored, self.status(key))

    def releases(self, key: Key) -> Sequence[Release]:
        self._run(key)
        return self.store.releases(key)

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        run = self._readable(key)
        for workload, _ in run.spec.entry:
            traffic = {name: value for name, value in (run.overrides.get(workload) or {}).items() if name == "traffic"}
            self._set_overrides(run, workload, {**traffic, **(bounds or {})})
        summary = ", ".join(f"{name} {value}" for name, value in (bounds or {}).items()) or "as the document says"
        self._record_event(key, f"Service/{key[1]}", "Scaled", f"by hand: {summary}")
        return self._reconcile(run)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        run = self._readable(key)
        (workload, _), *others = run.spec.entry
        if shares and not others and run.spec.workload(workload).mode != "serverless":
            message = f"{'/'.join(key)} is a Deployment with one side; a canary gives it a second"
            raise UsageError(message, f"platformctl canary start {key[1]} -f FILE --percent 10")
        _check_shares(run, shares or ())
        for name, override in tuple(run.overrides.items()):  # includes a variant that a promotion has removed
            self._set_overrides(run, name, {field: value for field, value in override.items() if field != "traffic"})
        if shares:
            traffic = [msgspec.to_builtins(share) for share in shares]
            self._set_overrides(run, workload, {**(run.overrides.get(workload) or {}), "traffic": traffic})
        summary = ", ".join(f"{share.revision} {share.percent} %" for share in shares or ()) or "as the document says"
        self._record_event(key, f"Service/{key[1]}", "TrafficChanged", f"by hand: {summary}")
        return self._reconcile(run)

    async def query(self, promql: str) -> Sequence[Sample]:
        """Evaluate an instant query. Raise PlatformError if it cannot be evaluated."""
        return await self.reconciler.query(promql)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        return self.store.events(key, after, limit)

    def log_files(self, key: Key, replica: str, previous: bool) -> Sequence[tuple[str, Path]]:
        """Return (replica id, file), newest replica last; `previous`: of replicas that have ended."""
        run = self._run(key)
        living = {each.id for each in self.reconciler.replica_set.living(run)}
        files = sorted((self.home.logs / key[0] / key[1]).glob("*.log"), key=lambda file: file.stat().st_mtime)
        return [(file.stem, file) for file in files if replica in ("", file.stem) and (file.stem in living) != previous]

    def delete(self, key: Key) -> None:
        run = self._run(key)
        self.store.begin_delete(key)
        run.deleting = True
        self._record_event(key, f"Service/{key[1]}", "Deleted", "its replicas finish what they have")
        self.reconciler.reconcile(run)

    async def wait_applied(self) -> None:
        """Wait until the gateway has applied all previous changes, at most APPLY_TIMEOUT_S."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.reconciler.wait_applied(), APPLY_TIMEOUT_S)

    def _run(self, key: Key) -> ServiceRun:
        run = self.reconciler.runs.get(key)
        if run is None:
            raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
        return run

    def _readable(self, key: Key) -> ServiceRun:
        run = self._run(key)
        if run.unreadable:
            raise PlatformError(f"{'/'.join(key)}: {run.unreadable}", "deploy it again, or delete it")
        return run

    def _reconcile(self, run: ServiceRun) -> ServiceStatus:
        self.reconciler.reconcile(run)
        return self.reconciler.status(run)

    def _set_overrides(self, run: ServiceRun, workload: str, values: Mapping[str, Json]) -> None:
        self.store.set_overrides(run.key, workload, values or None)
        stored = self.store.service(run.key)
        assert stored is not None
        run.overrides = stored.overrides
        run.spec = persistence.effective_spec(stored.manifests, stored.overrides)


def _check_shares(run: ServiceRun, shares: Sequence[Share]) -> None:
    known = {*(name for workload, _ in run.spec.entry for name in run.revisions_of(workload)), "latest"}
    unknown = [share.revision for share in shares if share.revision not in known]
    if unknown:
        raise NotFound(f"no revision is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if shares and sum(share.percent for share in shares) != 100:
        raise UsageError(f"the shares add up to {sum(share.percent for share in shares)}, must be 100")
