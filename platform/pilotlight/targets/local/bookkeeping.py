"""What happens by itself, kept for a later control process: replicas that come and go, revisions that answer or fail.

The machinery tells what happened; notes.py writes it once the disk has room, and restoring.py reads it again.
"""

from functools import partial

import msgspec

from pilotlight.targets.local.chronicle import utc
from pilotlight.targets.local.notes import Notes
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.local.supervisor.replica import Replica
from pilotlight.targets.local.units import Revision
from pilotlight.targets.target import Key


class Bookkeeping:
    """Used from one event loop. Of what happens to one thing while its note waits, only the last is written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._notes = Notes()
        self._saved: dict[str, tuple[object, ...]] = {}

    def replica(self, replica: Replica) -> None:
        """Written only when something changed that a later control process must know."""
        if replica.state == "exited":
            self._saved.pop(replica.id, None)
            self._notes.write(f"replica {replica.id}", partial(self._store.drop_replica, replica.id))
            return
        known = (replica.state, replica.pid, replica.start_ticks, replica.port)
        if self._saved.get(replica.id) != known:
            self._saved[replica.id] = known
            saved = partial(self._store.save_replica, replica.id, msgspec.to_builtins(replica))
            self._notes.write(f"replica {replica.id}", saved)

    def ready(self, key: Key, revision: Revision) -> None:
        marked = partial(self._store.mark_ready, key, revision.spec.workload, revision.name, utc())
        self._notes.write(f"state {key} {revision.name}", marked)

    def failed(self, key: Key, revision: Revision) -> None:
        failed = partial(self._store.mark_failed, key, revision.spec.workload, revision.name, revision.failure)
        self._notes.write(f"state {key} {revision.name}", failed)

    def forgotten(self, key: Key, workload: str, revision: str) -> None:
        self._notes.write(f"forget {key} {revision}", partial(self._store.forget_revision, key, workload, revision))

    def deleted(self, key: Key) -> None:
        self._notes.write(f"delete {key}", partial(self._store.finish_delete, key))

    def close(self) -> None:
        self._notes.close()
