"""Verbs of the embedded platform behind the control API: deploy, status, scale, traffic split, delete, canary records.

Every method but `wait_applied` and `query` returns at once. A change is stored first, then the reconciler acts on it;
progress shows in `status` and in events. The canary controller (pilotlight.canaries.controller) runs in a thread of its
own, is notified through `on_canary_change`, and uses the control API like any client.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pilotlight.canaries import stored_history
from pilotlight.canaries.events import canary_events
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s import access_annotations
from pilotlight.k8s.manifest import Manifest
from pilotlight.k8s.timestamps import parse_utc, utc_now
from pilotlight.prometheus.client import range_query
from pilotlight.targets.local import model_environments
from pilotlight.targets.local.control import persistence
from pilotlight.targets.local.control.control_audit import ControlAudit
from pilotlight.targets.local.control.reconciler import Reconciler, ReconcilerSettings
from pilotlight.targets.local.control.rollback_candidates import rollback_candidates, with_failed_revisions
from pilotlight.targets.local.control.service_state import Revision, ServiceRun
from pilotlight.targets.local.control.status import check_bounds, check_name, check_target, moved_bounds
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.history.points import Mark, ServiceHistory, resolution
from pilotlight.targets.local.history.range_query import RangeResult, RangeSeries, step_of, with_intervals
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests import service_discovery
from pilotlight.targets.local.manifests.interpret import check_queries, revisions_of
from pilotlight.targets.local.manifests.service_spec_types import ServiceSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.store.releases import live_manifests
from pilotlight.targets.local.store.store import MAX_EVENTS_PER_SERVICE, Store
from pilotlight.targets.local.supervisor.supervisor import LauncherFactory
from pilotlight.targets.target import (
    CanaryRecord,
    Event,
    Key,
    Release,
    Sample,
    ServiceStatus,
    Share,
    UsageRow,
    check_shares,
)

log = logging.getLogger("pilotlight.engine")
__all__ = ["Engine", "ReconcilerSettings"]

Json = Any
COLLECT_EVERY_S: Final = 600.0
APPLY_TIMEOUT_S: Final = 5.0  # replacing a gateway takes up to that long


class Engine:
    """Implements `targets.target.ServiceVerbs`; used from one event loop only."""

    def __init__(
        self,
        home: Home,
        settings: ReconcilerSettings,
        clock: Callable[[], float] = time.monotonic,
        launchers: Mapping[str, LauncherFactory] = MappingProxyType({}),
    ) -> None:
        self.home = home
        self.settings = settings
        self.store = Store.open(home.database)
        self.reconciler = Reconciler(home, settings, self.store, clock, launchers)
        self._record_event = self.reconciler.events.record
        self._audit = ControlAudit(home)
        self._clock = clock
        self._collector: asyncio.Task[None] | None = None
        self.reconciler.on_failing_answers = self._roll_back
        self.on_canary_change: Callable[[], None] = lambda: None  # called after every change
        for record in self.store.canaries():
            self._track_canary(record)

    async def start(self) -> None:
        await self.reconciler.start()
        self._collector = asyncio.create_task(self._collect_snapshots())

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """Close the engine; with `stop_all` end replicas and gateway too, else leave them running."""
        if self._collector is not None:
            self._collector.cancel()
        await self.reconciler.close(stop_all=stop_all, drain_s=drain_s)
        self.store.close()

    async def _collect_snapshots(self) -> None:
        """Remove the snapshots and environments of models that no stored release needs, now and then."""
        snapshots = ModelSnapshots(self.home.models)
        while True:
            with log_and_continue("collecting snapshots of models"):
                pins = {(path, digest) for path, digest, *_ in self.store.local_pins()}
                for name in await asyncio.to_thread(snapshots.collect, {digest for _, digest in pins}, time.time()):
                    log.info("removed the snapshot %s: unused by releases", name)
                for name in await asyncio.to_thread(model_environments.collect, self.home, pins, time.time()):
                    log.info("removed the environment %s: unused by releases and replicas", name)
            await asyncio.sleep(COLLECT_EVERY_S)

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        """Deploy a release.

        Raise Conflict if the service is not at `release.expected`, PlatformError for what cannot run on this machine.
        """
        key = (release.namespace, release.name)
        check_name(key)
        stored = self.store.service(key)
        overrides = {} if reset or stored is None else stored.overrides
        spec = persistence.effective_spec(release.manifests, overrides)
        check_target(self.reconciler.runs.get(key), spec)
        access_annotations.check(spec.access)
        service_discovery.check(spec)
        for workload in spec.workloads:
            self.reconciler.supervisor.check(workload.revision)
        if not self.settings.prometheus:
            check_queries(spec)
        if dry_run:
            return self.reconciler.status(self._new_run(key, stored.generation if stored else 0, spec))
        generation = self.store.apply(release, revisions_of(release.manifests), utc_now(), reset)
        run = self._update_run(key, generation, spec)
        run.overrides = overrides
        if run.rolled_back:
            run.rolled_back = ""
            self.store.set_note(key, generation, release.note)
        text = f"generation {generation} on {spec.target}: {release.note or 'deploy'}"
        self._record_event(key, f"Service/{key[1]}", "Deployed", text)
        self._audit.record("deploy", spec, text, release.by)
        return self._reconcile(run)

    def _roll_back(self, run: ServiceRun, revision: Revision) -> None:
        """Deploy the release before one whose first answers were all errors, if there is one; else the status says so.

        A canary judges its revision itself, and one that was ready before this process started may have answered.
        """
        reason = revision.answer_failure
        latest = revision in run.latest_revisions() and not revision.restored
        judged = run.key in self.reconciler.metrics.canary_services
        try:
            if latest and not judged and (chosen := self._earlier(run.key, revision.name)) is not None:
                note = f"{persistence.ROLLED_BACK}{chosen.generation}: {reason}"
                again = msgspec.structs.replace(chosen, expected=run.generation, note=note, generation=0, at="", by="")
                self.apply(again)
                run.rolled_back = note
                self._record_event(run.key, f"Revision/{revision.name}", "RolledBack", note, "Warning")
                return
        except PlatformError as error:
            reason = revision.answer_failure = f"{reason}; it could not be rolled back: {error}"
        self._record_event(run.key, f"Revision/{revision.name}", "Failing", reason, "Warning")

    def _earlier(self, key: Key, failing: str) -> Release | None:
        """Return the release to go back to from a failing revision; None: nothing else is kept, or all of it failed.

        It has the access rules of today.
        """
        from pilotlight.release.history import receives_all_traffic, with_current_access  # read documents

        releases = self.store.releases(key)
        candidates = rollback_candidates(releases, self.store.revisions(key), failing)
        chosen = next(filter(receives_all_traffic, candidates), None)
        return with_current_access(chosen, releases[0]) if chosen else None

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

    def live(self, key: Key) -> list[Manifest]:
        stored = self.store.service(key)
        if stored is None or key not in self.reconciler.runs:
            return []
        return [Manifest(document) for document in live_manifests(stored, self.status(key))]

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return [
            self.reconciler.status(run)
            for key, run in sorted(self.reconciler.runs.items())
            if namespace in (None, key[0])
        ]

    def releases(self, key: Key) -> Sequence[Release]:
        self._run(key)
        return with_failed_revisions(self.store.releases(key), self.store.revisions(key))

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        run = self._readable(key)
        check_bounds(run.spec, bounds or {})
        for workload, _ in run.spec.entry:
            traffic = {name: value for name, value in (run.overrides.get(workload) or {}).items() if name == "traffic"}
            self._set_overrides(run, workload, {**traffic, **(bounds or {})})
        summary = ", ".join(f"{name} {value}" for name, value in (bounds or {}).items()) or "reset to the manifest"
        self._record_event(key, f"Service/{key[1]}", "Scaled", f"manual: {summary}")
        self._audit.record("scale", run.spec, summary)
        status = self._reconcile(run)
        return msgspec.structs.replace(status, warnings=(*status.warnings, *moved_bounds(run.spec, bounds or {})))

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        run = self._readable(key)
        (workload, _), *others = run.spec.entry
        if shares and not others and run.spec.workload(workload).mode != "serverless":
            message = f"{'/'.join(key)} is a Deployment with one revision; start a canary to split traffic"
            raise UsageError(message, f"platformctl canary start {key[1]} -f FILE --percent 10")
        known = {*(name for entry, _ in run.spec.entry for name in run.revisions_of(entry)), "latest"}
        check_shares(shares or (), known)
        for name, override in tuple(run.overrides.items()):  # includes a variant that a promotion has removed
            self._set_overrides(run, name, {field: value for field, value in override.items() if field != "traffic"})
        if shares:
            traffic = [msgspec.to_builtins(share) for share in shares]
            self._set_overrides(run, workload, {**(run.overrides.get(workload) or {}), "traffic": traffic})
        summary = ", ".join(f"{share.revision} {share.percent} %" for share in shares or ()) or "reset to the manifest"
        self._record_event(key, f"Service/{key[1]}", "TrafficChanged", f"manual: {summary}")
        self._audit.record("traffic", run.spec, summary)
        return self._reconcile(run)

    async def query(self, promql: str) -> Sequence[Sample]:
        """Evaluate an instant query. Raise PlatformError if it cannot be evaluated."""
        return await self.reconciler.query(promql)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        return self.store.events(key, after, limit)

    async def history(self, key: Key, seconds: int, step: int = 0) -> ServiceHistory:
        """Return the recorded figures of the last `seconds`. Raise UsageError for a range that is not recorded so."""
        run, chosen = self._run(key), resolution(seconds, step)
        since = parse_utc(self.store.created_at(key)).timestamp()
        entry = {workload for workload, _ in run.spec.entry}
        history = await self.reconciler.history.history(key, seconds, chosen, since, entry)
        scaled = (each for each in self.events(key, limit=MAX_EVENTS_PER_SERVICE) if each.reason == "Scaled")
        marks = (Mark(round(parse_utc(each.at).timestamp(), 1), each.message) for each in scaled)
        return msgspec.structs.replace(history, marks=tuple(mark for mark in marks if mark.at >= history.at[0]))

    def usage(self, since: str) -> Sequence[UsageRow]:
        return self.store.token_usage.rows(since)

    async def query_range(self, promql: str, seconds: int) -> RangeResult:
        """Evaluate a range query that ends now, by the Prometheus server if there is one, else over the history."""
        chosen, server = resolution(seconds), self.settings.prometheus
        if not server:
            return await self.reconciler.history.query(promql, seconds, chosen)
        step, end = step_of(seconds, chosen), int(time.time())
        text = with_intervals(promql, seconds, chosen)
        times = tuple(range(end - end % step - seconds, end + 1, step))
        found = await asyncio.to_thread(range_query, server, text, times[0], times[-1], step)
        series = (RangeSeries(labels, tuple(map(values.get, times))) for labels, values in found)
        return RangeResult("prometheus", step, times, tuple(series))

    def log_files(self, key: Key, previous: bool) -> Sequence[tuple[str, Path]]:
        """Return (replica id, file), newest replica last; `previous`: of replicas that have ended."""
        run = self._run(key)
        living = {each.id for each in self.reconciler.replica_set.living(run)}
        files = sorted((self.home.logs / key[0] / key[1]).glob("*.log"), key=lambda file: file.stat().st_mtime)
        return [(file.stem, file) for file in files if (file.stem in living) != previous]

    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        """Set the values of a service's own Secret for replicas that start from now on, until it is deleted.

        They are kept in memory only and must be set again after a restart of the control process.
        """
        check_name(key)
        self.reconciler.supervisor.secrets[key] = dict(values)

    def delete(self, key: Key) -> None:
        self.reconciler.supervisor.secrets.pop(key, None)
        run = self._run(key)
        self.store.begin_delete(key)
        run.deleting = True
        self._record_event(key, f"Service/{key[1]}", "Deleted", "its replicas are draining")
        self._audit.record("delete", run.spec, "")
        self.reconciler.reconcile(run)

    @property
    def any_canary_running(self) -> bool:
        return bool(self.reconciler.metrics.canary_services)

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return [each for each in self.store.canaries() if namespace in (None, each.namespace)]

    def canary(self, key: Key) -> CanaryRecord | None:
        return self.store.canary(key)

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        """Store a canary. Raise Conflict if it is not at `version`, NotFound without such a service."""
        before = stored_history.decode_history(self.canary(key))
        after = stored_history.decode_history(CanaryRecord(*key, state, version))
        record = self.store.save_canary(key, state, version)
        for event in canary_events(before, after):
            self._record_event(key, f"Revision/{event.revision}", event.reason, event.message, event.type)
        self._track_canary(record)
        self.on_canary_change()
        return record

    def _track_canary(self, record: CanaryRecord) -> None:
        """Scrape the service's replicas while its canary runs; an unreadable record counts as none."""
        scraped = self.reconciler.metrics.canary_services
        try:
            runs = stored_history.running_canary(stored_history.decode_history(record)) is not None
        except PlatformError:
            runs = False
        (scraped.add if runs else scraped.discard)(record.key)

    async def wait_applied(self) -> None:
        """Wait until the gateway has applied all previous changes, at most APPLY_TIMEOUT_S."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.reconciler.wait_applied(), APPLY_TIMEOUT_S)

    def _run(self, key: Key) -> ServiceRun:
        run = self.reconciler.runs.get(key)
        if run is None:
            raise NotFound(f"there is no service {'/'.join(key)}", "see platformctl list")
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
