"""From the store back to what runs: services with their revisions and history, and the replicas that were alive."""

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


def services(store: Store, now: float, zero_grace_s: float) -> Iterator[ServiceRun]:
    """One that cannot be read comes without workloads and with the reason: the others must not wait for it."""
    for stored in store.services():
        try:
            run = _restored(stored, store, now, zero_grace_s)
        except (PlatformError, msgspec.MsgspecError) as error:
            log.error("%s is kept but cannot be run: %s", "/".join(stored.key), error)
            run = ServiceRun(stored.key, stored.generation, ServiceSpec(*stored.key, (), ()), zero_grace_s)
            run.unreadable = f"what is stored of it cannot be run: {error}"
        run.overrides, run.deleting = stored.overrides, stored.deleting
        yield run


def _restored(stored: StoredService, store: Store, now: float, zero_grace_s: float) -> ServiceRun:
    spec = specified(stored.manifests, stored.overrides)
    access_rules.check(spec.access)
    run = ServiceRun(stored.key, stored.generation, spec, zero_grace_s)
    _revisions(run, store, now)
    run.update(stored.generation, run.spec, now)
    run.history = _history(store, stored.key, run)
    return run


def _revisions(run: ServiceRun, store: Store, now: float) -> None:
    """Oldest first, so that their order in the dictionary is the order in which they came."""
    for stored in reversed(store.revisions(run.key)):
        spec = interpret(stored.manifests)
        for workload in spec.workloads:
            if workload.revision.name == stored.name:
                found = run.know(workload.revision, now, ready_once=bool(stored.first_ready_at))
                found.failure, found.given_up = stored.failed, bool(stored.failed)


def _history(store: Store, key: Key, run: ServiceRun) -> dict[str, list[Any]]:
    """Shares of earlier releases, only where the newest ones cannot hold yet: that is what history is for."""
    if all(found.ready_once for found in run.latest()):
        return {}
    history: dict[str, list[Any]] = {}
    for release in store.releases(key)[1:]:
        for workload in interpret(release.manifests).workloads:
            history.setdefault(workload.name, []).append(workload.traffic)
    return history


def replicas(store: Store) -> list[Replica]:
    return [msgspec.convert(value, Replica) for value in store.replicas()]


def specified(manifests: Sequence[Mapping[str, Json]], overrides: Mapping[str, Mapping[str, Json]]) -> ServiceSpec:
    """With the shares that were set by hand. Bounds are looked up when they are needed: they change no revision."""
    shares = {name: {"traffic": written["traffic"]} for name, written in overrides.items() if "traffic" in written}
    return interpret(manifests, shares)
