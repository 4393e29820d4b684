"""What happened, told for `platformctl events`: one line for each thing that a person may wonder about."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import Event, Key


class Chronicle:
    """Events inform; a full disk must not stop what they are about."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tell(
        self, key: Key, thing: str, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        with suppress(PlatformError):
            self._store.add_event(Event(utc(), *key, thing, kind, reason, message))


def utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
