"""The embedded platform's heart: what is stored, what runs, and what follows. Effects in, effects out, one event loop.

Manifests are applied to the store; `fleet` brings processes to what is wanted, `scaler` says how many that are, and
`publisher` tells the gateway. Every method here returns at once; what it set in motion shows in `status` and events.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.gateway.messages import Hello, Report, Unreachable, Wake, Word
from pilotlight.gateway.table import Replica as Reached
from pilotlight.gateway.table import Route
from pilotlight.targets.local import access_rules, launching, restoring, routes, statuses
from pilotlight.targets.local import fleet as starting
from pilotlight.targets.local.endpoints import Endpoints
from pilotlight.targets.local.fleet import Fleet
from pilotlight.targets.local.gateway_link import GatewayLink, gateway_command
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.interpret import check_queries, revisions_of
from pilotlight.targets.local.notes import Notes
from pilotlight.targets.local.peers import Peers
from pilotlight.targets.local.publishing import Publisher
from pilotlight.targets.local.scaler import Scaler
from pilotlight.targets.local.scaling.model import Decision
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.signals import Signals
from pilotlight.targets.local.store.live import live_manifests
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.pilot import pilot_lights
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.local.units import Revision, Unit
from pilotlight.targets.target import Event, Key, Release, ServiceStatus, Share

Json = Any
PORTS_TRIED: Final = 50


@dataclass(frozen=True, slots=True)
class EngineSettings:
    gateway_port: int
    service_ports: int = 8100  # the first of the services' own; 0: they have none
    prometheus: str = ""
    pilot_light: bool = True
    zero_grace_s: float = 0.0  # between nobody asking any more and the end of the last replica
    drain_s: float = 30.0
    respawn: tuple[str, ...] = field(default=())  # how the gateway starts the control process again


class Engine:
    """Used from one event loop only."""

    def __init__(self, home: Home, settings: EngineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.home = home
        self.settings = settings
        self.base_url = f"http://127.0.0.1:{settings.gateway_port}"
        self._clock = clock
        self._runs: dict[Key, ServiceRun] = {}
        self._saved: dict[str, tuple[object, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.store = Store.open(home.database)
        self.notes = Notes()
        self.peers = Peers(self.base_url, launching.token(home))
        pilot = pilot_lights(home) if settings.pilot_light else None
        self.supervisor = Supervisor(home, self._replica_changed, self.base_url, pilot)
        self.link = GatewayLink(home, self._heard, gateway_command(home, settings.respawn))
        self.publisher = Publisher(self.link, self._routes, self._farewell, Endpoints(home.run / "endpoints").update)
        self.fleet = Fleet(self.supervisor, self.publisher, self._save, self._look_again, self.peers)
        self.signals = Signals(self.supervisor, clock, settings.prometheus)
        self.scaler = Scaler(self._runs.values, self.fleet, self.signals, clock, self._decided)

    async def start(self) -> None:
        """Takes up what an earlier control process left: services, living replicas, the gateway and its sockets."""
        now = self._clock()
        for run in restoring.services(self.store, now, self.settings.zero_grace_s):
            self._runs[run.key] = run
            if self.settings.service_ports:  # the first table must name it, or the gateway would close it
                run.port = self._own_port(run)
        self.supervisor.adopt(restoring.replicas(self.store))
        await self.link.start([f"127.0.0.1:{self.settings.gateway_port}/http"])
        self.publisher.start()
        self.scaler.start()
        for run in list(self._runs.values()):
            run.take_up(Counter(unit for replica in self.fleet.living(run) for unit in names_of(replica)), now)
            self._open_port(run)
            self._settle(run)
        self.publisher.changed()  # a platform without services answers too

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """With `stop_all` nothing of the platform runs afterwards; without, replicas and gateway live on."""
        self._closing = True
        await self.scaler.close()
        await self.publisher.close()
        for task in list(self._tasks):
            task.cancel()
        if stop_all:
            await self.link.close(stop_gateway=True, drain_s=drain_s)
            for replica in self.supervisor.replicas():
                self.supervisor.drain(replica.id, drain_s)
        else:
            await self.link.close(stop_gateway=False, drain_s=0.0)
        await self.supervisor.close(leave_running=not stop_all)
        self.notes.close()
        self.store.close()

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        """Raises Conflict when the service is not at `release.expected`, PlatformError for what cannot run here."""
        key = (release.namespace, release.name)
        statuses.check_name(key)
        stored = self.store.service(key)
        overrides = {} if reset or stored is None else stored.overrides
        spec = restoring.specified(release.manifests, overrides)
        access_rules.check(spec.access)
        if not self.settings.prometheus:
            check_queries(spec)
        now = self._clock()
        if dry_run:
            trial = ServiceRun(key, stored.generation if stored else 0, spec)
            trial.update(trial.generation, spec, now)
            return self._status(trial)
        generation = self.store.apply(release, revisions_of(release.manifests), utc(), reset)
        run = self._runs.get(key)
        if run is None or run.deleting:
            run = self._runs[key] = ServiceRun(key, generation, spec, self.settings.zero_grace_s)
            run.update(generation, spec, now)
            run.history.clear()
            self._open_port(run)
        elif generation != run.generation:
            run.update(generation, spec, now)
        run.overrides = overrides
        for workload in spec.workloads:
            run.know(workload.revision, now)
        self._tell(key, f"Service/{key[1]}", "Deployed", f"generation {generation}: {release.note or 'deploy'}")
        self._settle(run)
        return self._status(run)

    def status(self, key: Key) -> ServiceStatus:
        return self._status(self._run(key))

    def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return [self._status(run) for key, run in sorted(self._runs.items()) if namespace in (None, key[0])]

    def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        stored = self.store.service(key)
        if stored is None or key not in self._runs:
            return []
        return live_manifests(stored, self.status(key))

    def releases(self, key: Key) -> Sequence[Release]:
        self._run(key)
        return self.store.releases(key)

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        run = self._run(key)
        for workload, _ in run.spec.entry:
            kept = {name: value for name, value in self._override(run, workload).items() if name == "traffic"}
            self._set_overrides(run, workload, {**kept, **(bounds or {})})
        told = ", ".join(f"{name} {value}" for name, value in (bounds or {}).items()) or "as the document says"
        self._tell(key, f"Service/{key[1]}", "Scaled", f"by hand: {told}")
        self._settle(run)
        return self._status(run)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        run = self._run(key)
        (workload, _), *others = run.spec.entry
        if not others and run.spec.workload(workload).mode != "serverless":
            message = f"{'/'.join(key)} is a Deployment with one side; a canary gives it a second"
            raise UsageError(message, f"platformctl canary start {key[1]} -f FILE --percent 10")
        _check_shares(run, shares or ())
        kept = {name: value for name, value in self._override(run, workload).items() if name != "traffic"}
        written = {"traffic": [msgspec.to_builtins(share) for share in shares]} if shares else {}
        self._set_overrides(run, workload, {**kept, **written})
        told = ", ".join(f"{share.revision} {share.percent} %" for share in shares or ()) or "as the document says"
        self._tell(key, f"Service/{key[1]}", "TrafficChanged", f"by hand: {told}")
        self._settle(run)
        return self._status(run)

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        return self.store.events(key, after, limit)

    def log_files(self, key: Key, replica: str, previous: bool) -> Sequence[tuple[str, Path]]:
        """(replica id, file), newest replica last; `previous`: of replicas that have ended."""
        run = self._run(key)
        living = {found.id for found in self.fleet.living(run)}
        files = sorted((self.home.logs / key[0] / key[1]).glob("*.log"), key=lambda file: file.stat().st_mtime)
        return [(file.stem, file) for file in files if replica in ("", file.stem) and (file.stem in living) != previous]

    def delete(self, key: Key) -> None:
        run = self._run(key)
        self.store.begin_delete(key)
        run.deleting = True
        self._tell(key, f"Service/{key[1]}", "Deleted", "its replicas finish what they have")
        self._settle(run)

    def _run(self, key: Key) -> ServiceRun:
        found = self._runs.get(key)
        if found is None:
            raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
        return found

    def _status(self, run: ServiceRun) -> ServiceStatus:
        return statuses.status_of(statuses.View(run, self.fleet.living(run), self._clock(), self.base_url))

    def _override(self, run: ServiceRun, workload: str) -> Mapping[str, Json]:
        return run.overrides.get(workload) or {}

    def _set_overrides(self, run: ServiceRun, workload: str, values: Mapping[str, Json]) -> None:
        self.store.set_overrides(run.key, workload, values or None)
        stored = self.store.service(run.key)
        assert stored is not None
        run.overrides = stored.overrides
        run.spec = restoring.specified(stored.manifests, stored.overrides)

    def _settle(self, run: ServiceRun) -> None:
        """Brings everything in line with what has just changed about a service."""
        if self._closing:
            return
        self.fleet.adjust(run, self._clock())
        self.publisher.changed()
        self.scaler.stir()
        self._finish_delete(run)
        for workload, name in run.forgettable({replica.revision for replica in self.fleet.living(run)}):
            run.revisions.pop(name)
            run.units.pop(name, None)
            self.notes.write(f"forget {run.key} {name}", partial(self.store.forget_revision, run.key, workload, name))

    def _finish_delete(self, run: ServiceRun) -> None:
        if run.deleting and not self.fleet.living(run):
            self.notes.write(f"delete {run.key}", partial(self.store.finish_delete, run.key))
            self._runs.pop(run.key, None)
            self.publisher.changed()

    def _look_again(self, seconds: float, run: ServiceRun) -> None:
        asyncio.get_running_loop().call_later(seconds + 0.01, self._settle, run)

    def _replica_changed(self, replica: Replica) -> None:
        run = self._runs.get((replica.namespace, replica.service))
        self._save(replica)
        revision = run.revisions.get(replica.revision) if run else None
        if run is None or revision is None:
            if replica.state not in ("draining", "exited"):
                self.publisher.retire(replica.id)
            return
        if replica.state == "ready":
            self._became_ready(run, revision, replica)
        elif replica.state == "exited":
            self._ended(run, revision, replica)
        self._settle(run)

    def _became_ready(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        revision.failure, revision.refused = "", False
        phases = replica.status.get("phases")
        revision.cold_start = phases if isinstance(phases, dict) else revision.cold_start
        if not revision.ready_once:
            revision.ready_once = True
            marked = partial(self.store.mark_ready, run.key, revision.spec.workload, revision.name, utc())
            self.notes.write(f"state {run.key} {revision.name}", marked)
            self._tell(run.key, f"Revision/{revision.name}", "Ready", "its first replica has answered")

    def _ended(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        self.signals.forget(replica)
        self.publisher.retiring.discard(replica.id)
        if not replica.crashed:
            return
        now = self._clock()
        starting.failed(revision, replica.reason, now)
        revision.refused = replica.status.get("state") == "failed"
        if revision.given_up:
            failed = partial(self.store.mark_failed, run.key, revision.spec.workload, revision.name, revision.failure)
            self.notes.write(f"state {run.key} {revision.name}", failed)
        self._tell(run.key, f"Replica/{replica.id}", "Failed", replica.reason, "Warning")

    def _save(self, replica: Replica) -> None:
        """Written only when something changed that a later control process must know."""
        if replica.state == "exited":
            self._saved.pop(replica.id, None)
            self.notes.write(f"replica {replica.id}", partial(self.store.drop_replica, replica.id))
            return
        known = (replica.state, replica.pid, replica.start_ticks, replica.port)
        if self._saved.get(replica.id) != known:
            self._saved[replica.id] = known
            saved = partial(self.store.save_replica, replica.id, msgspec.to_builtins(replica))
            self.notes.write(f"replica {replica.id}", saved)

    def _farewell(self, replica: str) -> None:
        """No request can reach it any more."""
        found = next((known for known in self.supervisor.replicas() if known.id == replica), None)
        if found is None:
            return
        run = self._runs.get((found.namespace, found.service))
        revision = run.revisions.get(found.revision) if run else None
        self.supervisor.drain(replica, revision.spec.grace_s if revision else self.settings.drain_s)

    def _routes(self) -> Iterator[Route]:
        ready: dict[tuple[str, str], list[Reached]] = {}
        for replica in self.supervisor.replicas():
            if replica.state == "ready" and replica.id not in self.publisher.retiring:
                reached = Reached(replica.id, replica.port, grpc_port=replica.grpc_port)
                ready.setdefault((replica.namespace, replica.revision), []).append(reached)
        for run in self._runs.values():
            if not run.deleting:
                yield from routes.routes(run, lambda namespace, name: ready.get((namespace, name), ()), self.peers.key)

    def _heard(self, word: Word) -> None:
        """What the gateway says."""
        now = self._clock()
        if isinstance(word, Hello):
            self.publisher.generation = max(self.publisher.generation, word.generation)
        elif isinstance(word, Wake):
            self._woken(word, now)
        elif isinstance(word, Report):
            for report in word.backends:
                unit = self._unit(report.namespace, report.workload, report.revision, now)
                if unit is not None:
                    unit.traffic.report(report, now)
            self.scaler.stir()
        elif isinstance(word, Unreachable):
            self._unreachable(word)

    def _woken(self, word: Wake, now: float) -> None:
        for run in self._runs.values():
            revision = run.revisions.get(word.revision)
            if run.key[0] == word.namespace and revision is not None:
                self.scaler.wake(run, run.unit_of(revision, now), word.waiting)
                self._settle(run)

    def _unreachable(self, word: Unreachable) -> None:
        found = next((known for known in self.supervisor.replicas() if known.id == word.replica), None)
        if found is not None:
            key = (found.namespace, found.service)
            self._tell(key, f"Replica/{found.id}", "Unreachable", word.reason, "Warning")

    def _unit(self, namespace: str, workload: str, revision: str, now: float) -> Unit | None:
        for run in self._runs.values():
            found = run.revisions.get(revision)
            if run.key[0] == namespace and found is not None and found.spec.workload == workload:
                return run.unit_of(found, now)
        return None

    def _decided(self, run: ServiceRun, unit: Unit, decision: Decision) -> None:
        unit.decided_at = utc()
        self._tell(run.key, f"Unit/{unit.name}", "Scaled", decision.reason)

    def _tell(
        self, key: Key, thing: str, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Events inform; a full disk must not stop what they are about."""
        with suppress(PlatformError):
            self.store.add_event(Event(utc(), *key, thing, kind, reason, message))

    def _open_port(self, run: ServiceRun) -> None:
        if self.settings.service_ports:
            task = asyncio.get_running_loop().create_task(self._open_own_port(run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _own_port(self, run: ServiceRun, attempt: int = 0) -> int:
        first = self.settings.service_ports
        return self.store.port(run.key, "http", range(first + attempt, first + 10_000))

    async def _open_own_port(self, run: ServiceRun) -> None:
        """The service's own port: the one that it had, else the next that is free."""
        first = self.settings.service_ports
        for attempt in range(PORTS_TRIED):
            port = self._own_port(run, attempt)
            if not await self.link.listen([f"127.0.0.1:{port}/http"]):
                run.port = port
                self.publisher.changed()
                return
            self.store.release_port(run.key, "http")
        self._tell(run.key, f"Service/{run.key[1]}", "NoPort", f"no port from {first} on is free", "Warning")


def _check_shares(run: ServiceRun, shares: Sequence[Share]) -> None:
    known = {*(name for workload, _ in run.spec.entry for name in run.revisions_of(workload)), "latest"}
    unknown = [share.revision for share in shares if share.revision not in known]
    if unknown:
        raise NotFound(f"no revision is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if shares and sum(share.percent for share in shares) != 100:
        raise UsageError(f"the shares add up to {sum(share.percent for share in shares)}, must be 100")


def names_of(replica: Replica) -> tuple[str, str]:
    """Of the unit that it counts for: a revision's, or a Deployment's."""
    return replica.revision, replica.workload


def utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
