"""Writer of run-time state that a later control process needs: replicas, ready or failed revisions.

Called by the reconciler; writes go through the write-behind queue (notes.py) and are read back by restoring.py.
"""

from functools import partial

import msgspec

from pilotlight.targets.local.chronicle import utc
from pilotlight.targets.local.notes import WriteBehindQueue
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.units import Revision
from pilotlight.targets.target import Key


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
        identity = (replica.state, replica.pid, replica.start_ticks, replica.port)
        if self._saved.get(replica.id) != identity:
            self._saved[replica.id] = identity
            save = partial(self._store.save_replica, replica.id, msgspec.to_builtins(replica))
            self._queue.put(f"replica {replica.id}", save)

    def mark_ready(self, key: Key, revision: Revision) -> None:
        mark = partial(self._store.mark_ready, key, revision.spec.workload, revision.name, utc())
        self._queue.put(f"state {key} {revision.name}", mark)

    def mark_failed(self, key: Key, revision: Revision) -> None:
        mark = partial(self._store.mark_failed, key, revision.spec.workload, revision.name, revision.failure)
        self._queue.put(f"state {key} {revision.name}", mark)

    def forget_revision(self, key: Key, workload: str, revision: str) -> None:
        self._queue.put(f"forget {key} {revision}", partial(self._store.forget_revision, key, workload, revision))

    def finish_delete(self, key: Key) -> None:
        self._queue.put(f"delete {key}", partial(self._store.finish_delete, key))

    def close(self) -> None:
        self._queue.close()
