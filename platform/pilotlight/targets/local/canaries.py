"""Canary records of the embedded platform: stored, reported as events, their services' metrics scraped.

The control process only stores them. The canary controller (pilotlight.canary.loop) runs in a thread of its own, is
notified through `on_change`, and uses the control API like any client.
"""

from collections.abc import Callable, Sequence

from pilotlight.canary import keeping
from pilotlight.canary.telling import canary_events
from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import CanaryRecord, Key

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
            keeping.decode_history(self.get(key)),
            keeping.decode_history(CanaryRecord(*key, state, version)),
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
            runs = keeping.running_canary(keeping.decode_history(record)) is not None
        except PlatformError:
            runs = False
        (self._services.add if runs else self._services.discard)(record.key)
