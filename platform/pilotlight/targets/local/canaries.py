"""Canaries of the embedded platform: kept in the store, told as events, their services' metrics read meanwhile.

The control process only keeps them. Who runs them is a thread beside it (pilotlight.canary.loop), which hears of every
change through `rung` and asks like anybody else.
"""

from collections.abc import Callable, Sequence

from pilotlight.canary import keeping
from pilotlight.canary.telling import told
from pilotlight.errors import PlatformError
from pilotlight.targets.local.store.store import Store
from pilotlight.targets.target import KeptCanary, Key

Tell = Callable[..., None]  # chronicle.Chronicle.tell


class Canaries:
    """`tried`: the services whose replicas' metrics are read, brought up to date with every change."""

    def __init__(self, store: Store, tell: Tell, tried: set[Key]) -> None:
        self._store, self._tell, self._tried = store, tell, tried
        self.rung: Callable[[], None] = lambda: None  # called after every change
        for kept in store.canaries():
            self._follow(kept)

    @property
    def running(self) -> bool:
        """Whether anybody has to look after one."""
        return bool(self._tried)

    def kept(self, namespace: str | None) -> Sequence[KeptCanary]:
        return [each for each in self._store.canaries() if namespace in (None, each.namespace)]

    def of(self, key: Key) -> KeptCanary | None:
        return self._store.canary(key)

    def keep(self, key: Key, state: str, version: str) -> KeptCanary:
        """Raises Conflict when it is not at that version, NotFound without such a service."""
        before, after = keeping.read(self.of(key)), keeping.read(KeptCanary(*key, state, version))
        kept = self._store.keep_canary(key, state, version)
        for each in told(before, after):
            self._tell(key, f"Revision/{each.revision}", each.reason, each.message, each.type)
        self._follow(kept)
        self.rung()
        return kept

    def _follow(self, kept: KeptCanary) -> None:
        """What cannot be read is nobody's canary any more."""
        try:
            runs = keeping.running(keeping.read(kept)) is not None
        except PlatformError:
            runs = False
        (self._tried.add if runs else self._tried.discard)(kept.key)
