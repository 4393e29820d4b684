"""Recorder of the events that `platformctl events` shows."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import Event, Key


class EventRecorder:
    """Writes events to the store; a failed write, such as on a full disk, is ignored."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(
        self, key: Key, subject: str, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        with suppress(PlatformError):
            self._store.add_event(Event(utc(), *key, subject, kind, reason, message))


def utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
