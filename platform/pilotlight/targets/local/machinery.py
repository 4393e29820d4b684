"""What runs and what follows from it: every part of the embedded platform, and what is done when something happens.

A replica changes, the gateway speaks, a second passes, somebody deploys: all of it ends in `settle`, which brings
processes and tables in line with what is specified. The engine in front of this is what a person asks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pilotlight.gateway.messages import BackendReport, Hello, Report, Unreachable, Wake, Word
from pilotlight.gateway.table import Replica as Reached
from pilotlight.gateway.table import Route
from pilotlight.targets.local import fleet as starting
from pilotlight.targets.local import launching, restoring, routes, statuses
from pilotlight.targets.local.bookkeeping import Bookkeeping
from pilotlight.targets.local.chronicle import Chronicle, utc
from pilotlight.targets.local.endpoints import Endpoints
from pilotlight.targets.local.fleet import Fleet
from pilotlight.targets.local.gateway_link import GatewayLink, gateway_command
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.making_way import MakingWay
from pilotlight.targets.local.own_ports import OwnPorts
from pilotlight.targets.local.peers import Peers
from pilotlight.targets.local.publishing import Publisher
from pilotlight.targets.local.rounds import Looks
from pilotlight.targets.local.scaler import Scaler
from pilotlight.targets.local.scaling.model import Decision
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.signals import Signals
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor import parking
from pilotlight.targets.local.supervisor.pilot import pilot_lights
from pilotlight.targets.local.supervisor.replica import AWAY, Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.local.units import Revision, Unit, initial
from pilotlight.targets.target import Key, Sample, ServiceStatus


@dataclass(frozen=True, slots=True)
class EngineSettings:
    gateway_port: int
    service_ports: int = 8100  # the first of the services' own; 0: they have none
    prometheus: str = ""
    pilot_light: bool = True
    zero_grace_s: float = 0.0  # between nobody asking any more and the end of the last replica
    drain_s: float = 30.0
    respawn: tuple[str, ...] = field(default=())  # how the gateway starts the control process again


class Machinery:
    """Used from one event loop only. `runs` are the services that there are."""

    def __init__(self, home: Home, settings: EngineSettings, store: Store, clock: Callable[[], float]) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self.base_url = f"http://127.0.0.1:{settings.gateway_port}"
        self.runs: dict[Key, ServiceRun] = {}
        self.chronicle = Chronicle(store)
        self._closing = False
        self._books = Bookkeeping(store)
        self._looks: Looks[ServiceRun] = Looks(lambda run: self.settle(run))
        self._peers = Peers(self.base_url, launching.token(home))
        pilot = pilot_lights(home) if settings.pilot_light else None
        self.supervisor = Supervisor(home, self._replica_changed, self.base_url, pilot)
        self._link = GatewayLink(home, self._heard, gateway_command(home, settings.respawn))
        endpoints = Endpoints(home.run / "endpoints")
        self._publisher = Publisher(self._link, self._routes, self._farewell, endpoints.update)
        self.fleet = Fleet(self.supervisor, self._publisher, self._books.replica, self._looks.soon, self._peers)
        self.signals = Signals(self.supervisor, clock, settings.prometheus)
        self._scaler = Scaler(self.runs.values, self.fleet, self.signals, clock, self._decided)
        self._making_way = MakingWay(
            self.runs, self.supervisor, self._publisher, self._scaler, self.chronicle, clock, self.settle
        )
        self.ports = OwnPorts(store, self._link, settings.service_ports, self.chronicle, self._publisher.changed)

    async def start(self) -> None:
        """Takes up what an earlier control process left: services, living replicas, the gateway and its sockets."""
        now = self.clock()
        for run in restoring.services(self.store, now, self.settings.zero_grace_s):
            self.runs[run.key] = run
            if not run.unreadable:
                self.ports.remember(run)
        self.supervisor.adopt(restoring.replicas(self.store))
        await self._link.start([f"127.0.0.1:{self.settings.gateway_port}/http"])
        self._publisher.start()
        self._scaler.start()
        for run in list(self.runs.values()):
            here = [replica for replica in self.fleet.living(run) if replica.state not in AWAY]
            run.take_up(Counter(unit for replica in here for unit in names_of(replica)), now)
            if not run.unreadable:
                self.ports.open(run)
            self.settle(run)
        self._publisher.changed()  # a platform without services answers too

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """With `stop_all` nothing of the platform runs afterwards; without, replicas and gateway live on."""
        self._closing = True
        await self._scaler.close()
        await self._publisher.close()
        self.ports.close()
        await self._link.close(stop_gateway=stop_all, drain_s=drain_s if stop_all else 0.0)
        if stop_all:
            for replica in self.supervisor.replicas():
                self.supervisor.drain(replica.id, drain_s)
        await self.supervisor.close(leave_running=not stop_all)
        self._looks.close()
        self._books.close()

    def settle(self, run: ServiceRun) -> None:
        """Brings everything in line with what has just changed about a service.

        One that was deleted has no say about another that has its name since.
        """
        if self._closing or self.runs.get(run.key) is not run:
            return
        run.doubt()
        self.fleet.adjust(run, self.clock())
        self._publisher.changed()
        self._scaler.stir()
        self.status(run)  # conditions get the time of the change, not of the next question
        self._finish_delete(run)
        for workload, name in run.forgettable({replica.revision for replica in self.fleet.living(run)}):
            run.revisions.pop(name)
            run.units.pop(name, None)
            self.signals.forget_lost(run.key, [name])
            self._books.forgotten(run.key, workload, name)
        self._making_way.look()

    async def confirmed(self) -> None:
        await self._publisher.confirmed()

    def status(self, run: ServiceRun) -> ServiceStatus:
        confirmed = self._publisher.shares(run.key)
        living = self.fleet.living(run)
        ports = self._publisher.ports(run.key)
        seen = statuses.status_of(statuses.View(run, living, self.clock(), self.base_url, confirmed, ports))
        status = statuses.dated(seen, run.conditions, utc())
        run.conditions = {condition.type: condition for condition in status.conditions}
        return status

    async def query(self, promql: str) -> list[Sample]:
        """Over the replicas of all services whose metrics are read."""
        asked = [run for run in self.runs.values() if run.key in self.signals.tried]
        return await self.signals.query(promql, [replica for run in asked for replica in self.fleet.staying(run)])

    def _finish_delete(self, run: ServiceRun) -> None:
        if run.deleting and not self.fleet.living(run):
            self._books.deleted(run.key)
            self.runs.pop(run.key, None)
            self.signals.forget_lost(run.key, run.revisions)
            self.ports.give_up(run)
            self._publisher.changed()

    def _replica_changed(self, replica: Replica) -> None:
        run = self.runs.get((replica.namespace, replica.service))
        self._books.replica(replica)
        revision = run.revisions.get(replica.revision) if run else None
        if run is None or revision is None:
            if replica.state not in ("draining", "exited"):
                self._publisher.retire(replica.id)
            elif run is not None:
                self.settle(run)
            return
        if replica.state == "ready":
            self._became_ready(run, revision, replica)
        elif replica.state == "exited":
            self._ended(run, revision, replica)
        elif replica.state == "parked" and not replica.reason:
            self._keep_within_budget()
        elif replica.state == "parking" and replica.unparkable:
            message = f"ended instead of parked: {replica.unparkable}"
            self.chronicle.tell(run.key, f"Replica/{replica.id}", "NotParked", message, "Warning")
        self.settle(run)

    def _keep_within_budget(self) -> None:
        """All parked replicas together keep a share of the machine's memory; who has been parked longest ends."""
        for replica in parking.beyond(self.supervisor.replicas(), parking.machine_budget()):
            message = "ended while parked: others need the memory that parked replicas may keep"
            self.chronicle.tell((replica.namespace, replica.service), f"Replica/{replica.id}", "Ended", message)
            self.supervisor.drain(replica.id, self.settings.drain_s)

    def _became_ready(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        revision.failure, revision.refused = "", False
        phases = replica.status.get("phases")
        revision.cold_start = phases if isinstance(phases, dict) else revision.cold_start
        if not revision.ready_once:
            revision.ready_once = True
            unit = run.unit_of(revision, self.clock())
            unit.desired = max(unit.desired, initial(unit.bounded(run.override_of(unit.name))))
            self._books.ready(run.key, revision)
            self.chronicle.tell(run.key, f"Revision/{revision.name}", "Ready", "its first replica has answered")

    def _ended(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        self.signals.forget(replica)
        self._publisher.retiring.discard(replica.id)
        if not replica.crashed:
            return
        now = self.clock()
        starting.failed(revision, replica.reason, now)
        revision.refused = replica.status.get("state") == "failed"
        if revision.given_up:
            self._books.failed(run.key, revision)
        self.chronicle.tell(run.key, f"Replica/{replica.id}", "Failed", replica.reason, "Warning")

    def _farewell(self, replica: str) -> None:
        """No request can reach it any more."""
        found = next((known for known in self.supervisor.replicas() if known.id == replica), None)
        if found is None:
            return
        run = self.runs.get((found.namespace, found.service))
        revision = run.revisions.get(found.revision) if run else None
        if run is not None and self.fleet.parks(run, found, self.clock()):
            self.supervisor.park(replica)
            return
        self.supervisor.drain(replica, revision.spec.grace_s if revision else self.settings.drain_s)

    def _routes(self) -> Iterator[Route]:
        ready: dict[tuple[str, str], list[Reached]] = {}
        for replica in self.supervisor.replicas():
            if replica.state == "ready" and replica.id not in self._publisher.retiring:
                reached = Reached(replica.id, replica.port, grpc_port=replica.grpc_port)
                ready.setdefault((replica.namespace, replica.revision), []).append(reached)
        for run in self.runs.values():
            if not run.deleting:
                yield from routes.routes(run, lambda namespace, name: ready.get((namespace, name), ()), self._peers.key)

    def _heard(self, word: Word) -> None:
        """What the gateway says."""
        now = self.clock()
        if isinstance(word, Hello):
            self._publisher.generation = max(self._publisher.generation, word.generation)
        elif isinstance(word, Wake):
            self._woken(word, now)
        elif isinstance(word, Report):
            for report in word.backends:
                self._reported(report, now)
            self._scaler.stir()
            self._making_way.look()
        elif isinstance(word, Unreachable):
            self._unreachable(word)

    def _reported(self, report: BackendReport, now: float) -> None:
        for run in self.runs.values():
            found = run.revisions.get(report.revision)
            if run.key[0] == report.namespace and found is not None and found.spec.workload == report.workload:
                run.unit_of(found, now).traffic.report(report, now)
                self.signals.count_lost(run.key, report.revision, report.lost)

    def _woken(self, word: Wake, now: float) -> None:
        for run in list(self.runs.values()):
            revision = run.revisions.get(word.revision)
            if run.key[0] == word.namespace and revision is not None:
                self._scaler.wake(run, run.unit_of(revision, now), word.waiting)
                self.settle(run)

    def _unreachable(self, word: Unreachable) -> None:
        found = next((known for known in self.supervisor.replicas() if known.id == word.replica), None)
        if found is not None:
            key = (found.namespace, found.service)
            self.chronicle.tell(key, f"Replica/{found.id}", "Unreachable", word.reason, "Warning")

    def _decided(self, run: ServiceRun, unit: Unit, decision: Decision) -> None:
        unit.decided_at = utc()
        self.chronicle.tell(run.key, f"Unit/{unit.name}", "Scaled", decision.reason)


def names_of(replica: Replica) -> tuple[str, str]:
    """Of the unit that it counts for: a revision's, or a Deployment's."""
    return replica.revision, replica.workload
