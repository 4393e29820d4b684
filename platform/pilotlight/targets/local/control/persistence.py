"""Run-time state that a later control process needs: written behind by the reconciler, restored at the next start.

A deploy that cannot be stored is refused. A replica starts, becomes ready or ends regardless of a full disk; its record
waits in the write-behind queue and is retried every RETRY_S seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from pilotlight.errors import PlatformError
from pilotlight.k8s import access_annotations
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.control.service_state import Revision, ServiceRun
from pilotlight.targets.local.manifests.interpret import interpret
from pilotlight.targets.local.manifests.service_spec_types import ServiceSpec
from pilotlight.targets.local.store.schema import StoredService
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import Key

Json = Any
RETRY_S: Final = 1.0
ROLLED_BACK: Final = "rolled back to generation "  # how the note of an automatic rollback begins
log = logging.getLogger("pilotlight.restoring")
queue_log = logging.getLogger("pilotlight.notes")


def restore_services(store: Store, now: float, zero_grace_s: float) -> Iterator[ServiceRun]:
    """Yield every stored service; an unreadable one has no workloads and gives the reason in `unreadable`."""
    for stored in store.services():
        try:
            run = _restore_service(stored, store, now, zero_grace_s)
        except (PlatformError, msgspec.MsgspecError) as error:
            log.error("%s is stored but cannot run: %s", "/".join(stored.key), error)
            run = ServiceRun(stored.key, stored.generation, ServiceSpec(*stored.key, (), ()), zero_grace_s)
            run.unreadable = f"its stored release cannot run: {error}"
        run.overrides, run.deleting = stored.overrides, stored.deleting
        yield run


def _restore_service(stored: StoredService, store: Store, now: float, zero_grace_s: float) -> ServiceRun:
    spec = effective_spec(stored.manifests, stored.overrides)
    access_annotations.check(spec.access)
    run = ServiceRun(stored.key, stored.generation, spec, zero_grace_s)
    # Oldest first: the dictionary keeps the order of creation.
    for recorded in reversed(store.revisions(run.key)):
        for workload in interpret(recorded.manifests).workloads:
            if workload.revision.name == recorded.name:
                revision = run.add_revision(workload.revision, now, ready_once=bool(recorded.first_ready_at))
                revision.failure, revision.deadline_exceeded = recorded.failed, bool(recorded.failed)
                revision.verification, revision.answer_failure = recorded.verification, recorded.answer_failure
                revision.restored, revision.gpu_peak = True, recorded.gpu_peak
    run.update(stored.generation, run.spec, now)
    run.history = _traffic_history(store, stored.key, run)
    note = store.note(stored.key, stored.generation)
    run.rolled_back = note if note.startswith(ROLLED_BACK) else ""
    return run


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


class WriteBehindQueue:
    """Pending writes in order of arrival. Used from one event loop."""

    def __init__(self) -> None:
        self._pending: dict[str, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def put(self, key: str, write: Callable[[], None]) -> None:
        """Write now if possible, else later; replaces a pending write with the same key."""
        self._pending.pop(key, None)
        self._pending[key] = write
        if self._timer is None:
            self._flush()

    def close(self) -> None:
        """Try a last time; what cannot be written is lost, and the next control process recovers without it."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        while self._pending:
            key, write = next(iter(self._pending.items()))
            try:
                write()
            except PlatformError as error:
                if not self._warned:  # once, until all is written
                    queue_log.warning("%s; events are stored when the database is writable again", error)
                    self._warned = True
                self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._flush)
                return
            del self._pending[key]
        self._warned = False


class StateWriter:
    """Used from one event loop. While a write is pending, a later one for the same object replaces it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue = WriteBehindQueue()
        self._saved: dict[str, tuple[object, ...]] = {}

    def save_replica(self, replica: Replica) -> None:
        """Save a replica if a field that adoption needs has changed; drop it once it has exited."""
        if replica.state == "exited":
            self._saved.pop(replica.id, None)
            self._queue.put(f"replica {replica.id}", partial(self._store.drop_replica, replica.id))
            return
        identity = (
            replica.state, replica.pid, replica.start_ticks, replica.port, replica.handle, replica.node,
        )  # fmt: skip
        if self._saved.get(replica.id) != identity:
            self._saved[replica.id] = identity
            save = partial(self._store.save_replica, replica.id, msgspec.to_builtins(replica))
            self._queue.put(f"replica {replica.id}", save)

    def mark_ready(self, key: Key, revision: Revision) -> None:
        mark = partial(self._store.mark_ready, key, revision.spec.workload, revision.name, utc_now())
        self._queue.put(f"failed {key} {revision.name}", mark)  # in place of a pending failure

    def update_revision(self, key: Key, revision: Revision, *, durable: bool = False, **columns: str | int) -> None:
        update = partial(self._store.update_revision, key, revision.spec.workload, revision.name, durable=durable)
        self._queue.put(f"{','.join(columns)} {key} {revision.name}", partial(update, **columns))

    def forget_revision(self, key: Key, workload: str, revision: str) -> None:
        self._queue.put(f"forget {key} {revision}", partial(self._store.forget_revision, key, workload, revision))

    def finish_delete(self, key: Key) -> None:
        self._queue.put(f"delete {key}", partial(self._store.finish_delete, key))

    def close(self) -> None:
        self._queue.close()
