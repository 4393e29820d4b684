"""Restore run-time state from the store: services with revisions and traffic history, and recorded replicas."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pilotlight.errors import PlatformError
from pilotlight.targets.local import access_rules
from pilotlight.targets.local.interpret import interpret
from pilotlight.targets.local.model import ServiceSpec
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.records import StoredService
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.target import Key

Json = Any
log = logging.getLogger("pilotlight.restoring")


def restore_services(store: Store, now: float, zero_grace_s: float) -> Iterator[ServiceRun]:
    """Yield every stored service; an unreadable one has no workloads and gives the reason in `unreadable`."""
    for stored in store.services():
        try:
            run = _restore_service(stored, store, now, zero_grace_s)
        except (PlatformError, msgspec.MsgspecError) as error:
            log.error("%s is stored but cannot be run: %s", "/".join(stored.key), error)
            run = ServiceRun(stored.key, stored.generation, ServiceSpec(*stored.key, (), ()), zero_grace_s)
            run.unreadable = f"what is stored of it cannot be run: {error}"
        run.overrides, run.deleting = stored.overrides, stored.deleting
        yield run


def _restore_service(stored: StoredService, store: Store, now: float, zero_grace_s: float) -> ServiceRun:
    spec = effective_spec(stored.manifests, stored.overrides)
    access_rules.check(spec.access)
    run = ServiceRun(stored.key, stored.generation, spec, zero_grace_s)
    _restore_revisions(run, store, now)
    run.update(stored.generation, run.spec, now)
    run.history = _traffic_history(store, stored.key, run)
    return run


def _restore_revisions(run: ServiceRun, store: Store, now: float) -> None:
    # Oldest first: the dictionary keeps the order of creation.
    for stored in reversed(store.revisions(run.key)):
        spec = interpret(stored.manifests)
        for workload in spec.workloads:
            if workload.revision.name == stored.name:
                revision = run.add_revision(workload.revision, now, ready_once=bool(stored.first_ready_at))
                revision.failure, revision.deadline_exceeded = stored.failed, bool(stored.failed)


def _traffic_history(store: Store, key: Key, run: ServiceRun) -> dict[str, list[Any]]:
    """Return the shares of earlier releases by workload, newest first."""
    if all(revision.ready_once for revision in run.latest_revisions()):
        return {}  # the newest shares are effective, so history is never consulted
    history: dict[str, list[Any]] = {}
    for release in store.releases(key)[1:]:
        for workload in interpret(release.manifests).workloads:
            history.setdefault(workload.name, []).append(workload.traffic)
    return history


def restore_replicas(store: Store) -> list[Replica]:
    return [msgspec.convert(value, Replica) for value in store.replicas()]


def effective_spec(manifests: Sequence[Mapping[str, Json]], overrides: Mapping[str, Mapping[str, Json]]) -> ServiceSpec:
    """Interpret manifests with traffic overrides. Bounds are left out: they are applied at each decision."""
    shares = {name: {"traffic": values["traffic"]} for name, values in overrides.items() if "traffic" in values}
    return interpret(manifests, shares)
