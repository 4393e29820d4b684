"""Reconciler of the embedded platform: assembles its parts and reacts to their events.

Replica changes, gateway messages, autoscaler ticks and deploys all end in `reconcile`, which brings processes and
routing tables in line with the specification. service_operations.py calls it for the control API.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from pilotlight.contract import is_predictor_image
from pilotlight.gateway.control_link import BackendReport, GatewayMessage, Hello, Report, Unreachable, Wake
from pilotlight.gateway.routing_table import Replica as RoutedReplica
from pilotlight.gateway.routing_table import Route
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.error_from_log import last_exception
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.control import gateway_routes, persistence, replicas
from pilotlight.targets.local.control import status as control_status
from pilotlight.targets.local.control.adapters import AdapterLoader
from pilotlight.targets.local.control.autoscaler import Autoscaler
from pilotlight.targets.local.control.gateway_routes import ServicePorts
from pilotlight.targets.local.control.gpu_admission import GpuAdmission
from pilotlight.targets.local.control.metrics_source import MetricsSource
from pilotlight.targets.local.control.persistence import StateWriter
from pilotlight.targets.local.control.replicas import ReplicaSet
from pilotlight.targets.local.control.service_state import Revision, ServiceRun, Unit, initial_replicas
from pilotlight.targets.local.control.verification import failure_reason, unverified_message, verification
from pilotlight.targets.local.delayed_queue import DelayedQueue
from pilotlight.targets.local.gateway.gateway_link import GatewayLink, gateway_command
from pilotlight.targets.local.gateway.https_settings import HttpsSettings
from pilotlight.targets.local.gateway.publisher import Publisher
from pilotlight.targets.local.history.recorder import Recorder
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_discovery import ComponentAddresses, EndpointFiles
from pilotlight.targets.local.scaling.gpu_admission import DEFAULT_RULES, Rules
from pilotlight.targets.local.scaling.types import Decision
from pilotlight.targets.local.store.store import EventRecorder, Store
from pilotlight.targets.local.store.token_usage import DEFAULT_DAYS
from pilotlight.targets.local.supervisor import logs
from pilotlight.targets.local.supervisor.forkserver_client import pilot_lights
from pilotlight.targets.local.supervisor.gpus import PARKED_PERCENT, over_budget, parking_budget
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Replica
from pilotlight.targets.local.supervisor.supervisor import LauncherFactory, Supervisor
from pilotlight.targets.target import Key, Sample, ServiceStatus


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    gateway_port: int
    service_ports: int = 8100  # first port of the services' own; 0: none
    prometheus: str = ""
    pilot_light: bool = True
    zero_grace_s: float = 0.0  # between the end of the idle window and the removal of the last replica
    drain_s: float = 30.0
    https: HttpsSettings | None = None
    allowed_hosts: tuple[str, ...] = ()  # of requests to loopback listeners, beside those of services
    console: str = ""  # URL of the console
    gpu_rules: Rules = DEFAULT_RULES
    parked_percent: float = PARKED_PERCENT
    usage_days: int = DEFAULT_DAYS  # that the store has token usage of


class Reconciler:
    """Services and everything that runs for them; used from one event loop only."""

    def __init__(
        self,
        home: Home,
        settings: ReconcilerSettings,
        store: Store,
        clock: Callable[[], float],
        launchers: Mapping[str, LauncherFactory] = MappingProxyType({}),
    ) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self.base_url = f"http://127.0.0.1:{settings.gateway_port}"
        self.runs: dict[Key, ServiceRun] = {}
        self.events = EventRecorder(store)
        self.on_failing_answers: Callable[[ServiceRun, Revision], None] = lambda run, revision: None
        self._closing = False
        self._state = StateWriter(store)
        self._requeue: DelayedQueue[ServiceRun] = DelayedQueue(lambda run: self.reconcile(run))
        self._peers = ComponentAddresses(self.base_url, control_process_launcher.token(home))
        processes = ProcessLauncher(home, self.base_url, pilot_lights(home) if settings.pilot_light else None)
        self.supervisor = Supervisor(
            home, self._replica_changed, processes, launchers, gpu_facts=lambda replica: self.gpus.facts(replica),
            gpu_rules=settings.gpu_rules, parked_percent=settings.parked_percent, clock=clock,
        )  # fmt: skip
        tls = settings.https.gateway_flags() if settings.https else ()
        self.history = Recorder(home.history, self.supervisor.replicas)
        self._link = GatewayLink(home, self._on_gateway_message, gateway_command(home, tls))
        self._link.spent = lambda: store.token_usage.spent(time.time())
        store.token_usage.days = settings.usage_days
        endpoints = EndpointFiles(home.run / "endpoints")
        self._publisher = Publisher(
            self._link, self._routes, self._replica_unrouted, endpoints.update, settings.allowed_hosts, settings.console
        )
        self.replica_set = ReplicaSet(
            self.supervisor, self._publisher, self._state.save_replica, self._requeue.add_after, self._peers
        )
        self.adapters = AdapterLoader(home, self.events, self.reconcile, settings.drain_s)
        self.metrics = MetricsSource(self.supervisor, clock, settings.prometheus)
        self._autoscaler = Autoscaler(
            self.runs.values, self.replica_set, self.metrics, clock, self._record_scaling,
            lambda now: self.gpus.tick(now),
        )  # fmt: skip
        self.gpus = GpuAdmission(
            self.runs, self.supervisor, self._publisher, self._autoscaler, self.events, clock, self.reconcile,
            self._state.update_revision,
        )  # fmt: skip
        self.ports = ServicePorts(store, self._link, settings.service_ports, self.events, self._publisher.changed)

    async def start(self) -> None:
        """Restore services from the store; adopt living replicas, the gateway and its sockets."""
        now = self.clock()
        for run in persistence.restore_services(self.store, now, self.settings.zero_grace_s):
            self.runs[run.key] = run
            if not run.unreadable:
                self.ports.restore(run)
        self.supervisor.adopt(persistence.restore_replicas(self.store))
        https = [f"{self.settings.https.address}/https"] if self.settings.https else []
        await self._link.start([f"127.0.0.1:{self.settings.gateway_port}/http", *https])
        self._publisher.start()
        self._autoscaler.start()
        self.history.start()
        for run in list(self.runs.values()):
            running = [replica for replica in self.replica_set.living(run) if replica.state not in PARKED_STATES]
            # A replica counts for its revision's unit (serverless) or its Deployment's; only one of them exists.
            run.restore_scale(Counter(unit for each in running for unit in (each.revision, each.workload)), now)
            for replica in running:
                if replica.state == "ready" and replica.revision in run.revisions:
                    run.revisions[replica.revision].ready_since[replica.id] = now
            if not run.unreadable:
                self.ports.open(run)
            self.reconcile(run)
        self._publisher.changed()  # a platform without services answers too

    async def close(self, *, stop_all: bool, drain_s: float = 30.0) -> None:
        """Stop reconciling; with `stop_all` end replicas and gateway too, else leave them running."""
        self._closing = True
        self.adapters.close()
        await self.history.close()
        await self._autoscaler.close()
        await self._publisher.close()
        self.ports.close()
        await self._link.close(stop_gateway=stop_all, drain_s=drain_s if stop_all else 0.0)
        if stop_all:
            for replica in self.supervisor.replicas():
                self.supervisor.drain(replica.id, drain_s)
        await self.supervisor.close(leave_running=not stop_all)
        self._requeue.close()
        self.gpus.close()
        self._state.close()

    def reconcile(self, run: ServiceRun) -> None:
        """Bring replicas, routes and status of one service in line with its specification."""
        if self._closing or self.runs.get(run.key) is not run:
            return  # stale: a deleted service must not affect a new one of the same name
        run.reset_idle_readiness()
        self.replica_set.reconcile(run, self.clock())
        self.adapters.reconcile(run, self.replica_set.active(run))
        self._publisher.changed()
        self._autoscaler.resume()
        self.status(run)  # stamps conditions with the time of the change, not of the next status request
        if run.deleting and not self.replica_set.living(run):
            self._state.finish_delete(run.key)
            self.runs.pop(run.key, None)
            self.metrics.retain(self.runs)
            self.ports.release(run)
            self._publisher.changed()
        for workload, name in run.expired_revisions({replica.revision for replica in self.replica_set.living(run)}):
            run.revisions.pop(name)
            run.units.pop(name, None)
            self.metrics.forget_revision(run.key, name)
            self._state.forget_revision(run.key, workload, name)
        self.gpus.reconcile()

    async def wait_applied(self) -> None:
        await self._publisher.wait_applied()

    def status(self, run: ServiceRun) -> ServiceStatus:
        confirmed = self._publisher.shares(run.key)
        living = self.replica_set.living(run)
        ports = self._publisher.ports(run.key)
        https = self.settings.https.address if self.settings.https else ""
        view = control_status.ServiceView(run, living, self.clock(), self.base_url, confirmed, ports, https)
        status = control_status.with_transition_times(control_status.status_of(view), run.conditions, utc_now())
        if run.spec.adapters:
            status = structs.replace(status, adapters=self.adapters.status(run, living))
        run.conditions = {condition.type: condition for condition in status.conditions}
        return status

    async def query(self, promql: str) -> list[Sample]:
        """Evaluate an instant query over the replicas of all services that have a canary."""
        runs = [run for run in self.runs.values() if run.key in self.metrics.canary_services]
        return await self.metrics.query(promql, [replica for run in runs for replica in self.replica_set.active(run)])

    def _replica_changed(self, replica: Replica) -> None:
        run = self.runs.get((replica.namespace, replica.service))
        self._state.save_replica(replica)
        self.gpus.observe(replica)
        revision = run.revisions.get(replica.revision) if run else None
        if run is None or revision is None:
            if replica.state not in ("draining", "exited"):
                self._publisher.retire(replica.id)
            elif run is not None:
                self.reconcile(run)
            return
        if replica.state == "ready":
            self._replica_ready(run, revision, replica)
        elif replica.state == "exited":
            self._replica_exited(run, revision, replica)
        elif replica.state == "parked" and not replica.reason:
            # End the replicas parked longest while all parked ones exceed their share of the machine's memory.
            for parked in over_budget(self.supervisor.replicas(), parking_budget(self.settings.parked_percent)):
                message = "stopped while parked: the memory for parked replicas is needed"
                self.events.record((parked.namespace, parked.service), f"Replica/{parked.id}", "Ended", message)
                self.supervisor.drain(parked.id, self.settings.drain_s)
        elif replica.state == "parking" and replica.unparkable:
            revision.parks_never = replica.parks_never
            always = ", from now on" if replica.parks_never else ""
            self._warn(replica, "NotParked", f"stopped instead of parked{always}: {replica.unparkable}")
        if replica.context_kept and not revision.context_kept:
            revision.context_kept = True
            self._warn(replica, "ContextKept", f"its CUDA context stays on the GPU: {replica.context_kept}")
        self.reconcile(run)

    def _warn(self, replica: Replica, reason: str, message: str) -> None:
        key = (replica.namespace, replica.service)
        self.events.record(key, f"Replica/{replica.id}", reason, message, "Warning")

    def _replica_ready(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        revision.failure, revision.load_failed, revision.start_failed = "", False, False
        revision.ready_since.setdefault(replica.id, self.clock())
        phases = replica.status.get("phases")
        revision.cold_start = phases if isinstance(phases, dict) else revision.cold_start
        if not revision.ready_once:
            revision.ready_once = True
            unit = run.unit_of(revision, self.clock())
            unit.desired = max(unit.desired, initial_replicas(unit.bounded(run.override_of(unit.name))))
            self._state.mark_ready(run.key, revision)
            self.events.record(run.key, f"Revision/{revision.name}", "Ready", "its first replica is ready")
        self._verify(run, revision)

    def _verify(self, run: ServiceRun, revision: Revision) -> None:
        """Record whether the revision has answered, or that its first answers were errors."""
        replicas = self._ready_replicas(run, revision)
        before = revision.verification
        failures = (str(replica.status.get("warmup_failure") or "") for replica in replicas)
        revision.warmup_failure = next(filter(None, failures), "")
        revision.verification = verification(before, [replica.status for replica in replicas])
        if revision.verification == before:
            return
        failing = revision.verification == "failing"
        errors = (last_exception(logs.tail(replica.log)) for replica in replicas)
        revision.answer_failure = failure_reason(revision.name, next(filter(None, errors), "")) if failing else ""
        outcome = {"verification": revision.verification, "answer_failure": revision.answer_failure}
        self._state.update_revision(run.key, revision, durable=True, **outcome)
        subject = f"Revision/{revision.name}"
        if revision.verification == "unverified":
            self.events.record(run.key, subject, "Unverified", unverified_message(revision.warmup_failure))
        elif failing:
            self.on_failing_answers(run, revision)
        elif before != "unknown":
            self.events.record(run.key, subject, "Verified", "its model has answered a request")

    def _ready_replicas(self, run: ServiceRun, revision: Revision) -> list[Replica]:
        return [
            each for each in self.replica_set.living(run) if each.revision == revision.name and each.state == "ready"
        ]

    def _replica_exited(self, run: ServiceRun, revision: Revision, replica: Replica) -> None:
        self.metrics.forget(replica)
        self.adapters.forget(replica.id)
        self._publisher.retiring.discard(replica.id)
        replicas.record_exit(revision, replica, self.clock())
        if replica.wake_failure:
            revision.parks_never = True  # every later wake would be followed by a cold start
            self._warn(replica, "WakeFailed", f"started again, and not parked from now on: {replica.wake_failure}")
        if not replica.crashed:
            return
        if revision.deadline_exceeded:
            self._state.update_revision(run.key, revision, failed=revision.failure)
        self._warn(replica, "Failed", replica.reason)

    def _replica_unrouted(self, replica: str) -> None:
        """Park or drain a replica that the gateway no longer routes to."""
        record = self._find_replica(replica)
        if record is None:
            return
        run = self.runs.get((record.namespace, record.service))
        revision = run.revisions.get(record.revision) if run else None
        if run is not None and self.replica_set.should_park(run, record, self.clock()):
            self.supervisor.park(replica)
            return
        self.supervisor.drain(replica, revision.spec.grace_s if revision else self.settings.drain_s)

    def _find_replica(self, replica: str) -> Replica | None:
        return next((record for record in self.supervisor.replicas() if record.id == replica), None)

    def _routes(self) -> Iterator[Route]:
        ready: dict[tuple[str, str], list[RoutedReplica]] = {}
        for replica in self.supervisor.replicas():
            run = self.runs.get((replica.namespace, replica.service))
            loaded = run is None or self.adapters.has_adapters(run, replica)
            if replica.state == "ready" and replica.id not in self._publisher.retiring and loaded:
                routed = RoutedReplica(replica.id, replica.port, replica.host, replica.grpc_port)
                ready.setdefault((replica.namespace, replica.revision), []).append(routed)
        for run in self.runs.values():
            if not run.deleting:
                serving = [each.id for name in run.revisions for each in ready.get((run.key[0], name), ())]
                yield from gateway_routes.routes(
                    run, lambda namespace, name: ready.get((namespace, name), ()), self._peers.key,
                    self.adapters.routed(run, serving) if run.spec.adapters else (),
                )  # fmt: skip

    def _on_gateway_message(self, message: GatewayMessage) -> None:
        now = self.clock()
        if isinstance(message, Hello):
            self._publisher.generation = max(self._publisher.generation, message.generation)
        elif isinstance(message, Wake):
            self._on_wake(message, now)
        elif isinstance(message, Report):
            for report in message.backends:
                self._on_report(report, now)
            if message.tokens:
                self.store.token_usage.add(message.tokens, time.time())
            self.metrics.count_tokens(message)
            for report in message.adapters:
                self.metrics.count_requests((report.namespace, report.name), report)
            self.metrics.retain(self.runs)  # the last report of a deleted service comes after its end
            self._autoscaler.resume()
            self.gpus.seen_at = now
            self.gpus.reconcile()
        elif isinstance(message, Unreachable) and (replica := self._find_replica(message.replica)) is not None:
            self._warn(replica, "Unreachable", message.reason)

    def _on_report(self, report: BackendReport, now: float) -> None:
        for run in self.runs.values():
            revision = run.revisions.get(report.revision)
            if run.key[0] == report.namespace and revision is not None and revision.spec.workload == report.workload:
                run.unit_of(revision, now).traffic.report(report, now)
                self.history.report(run.key, report)
                self.metrics.count_lost(run.key, report.revision, report.lost)
                if not is_predictor_image(revision.spec.container.image):
                    self.metrics.count_requests(run.key, report)
                if report.requests and revision.verification in ("unverified", "failing"):
                    for replica in self._ready_replicas(run, revision):
                        self.supervisor.read_status(replica.id)

    def _on_wake(self, message: Wake, now: float) -> None:
        self.gpus.seen_at = now
        for each in message.active:
            for run in self.runs.values():
                if run.key[0] == each.namespace and (revision := run.revisions.get(each.revision)) is not None:
                    unit = run.unit_of(revision, now)
                    unit.traffic.observe(each.waiting, each.in_flight, each.idle_s, now)
        for run in list(self.runs.values()):
            revision = run.revisions.get(message.revision)
            if run.key[0] == message.namespace and revision is not None:
                if revision.deadline_exceeded:
                    revision.retry(now)
                self._autoscaler.wake(run, run.unit_of(revision, now), message.waiting)
                self.reconcile(run)

    def _record_scaling(self, run: ServiceRun, unit: Unit, decision: Decision) -> None:
        unit.decided_at = utc_now()
        self.events.record(run.key, f"Unit/{unit.name}", "Scaled", decision.reason)
