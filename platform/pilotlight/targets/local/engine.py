"""The embedded platform's heart: what is stored, what runs, and what follows. Effects in, effects out, one event loop.

Manifests are applied to the store; `reconcile` says what should run and who gets requests; the supervisor starts and
ends processes; the gateway is told by a new table. Every method here returns at once; what it set in motion shows in
`status` and in events.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotlight.targets.target import Event, Key, Release, ServiceStatus, Share

Json = Any


class Engine:
    """Used from one event loop only."""

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        """Raises Conflict when the service is no longer at `release.expected`."""
        raise NotImplementedError

    def status(self, key: Key) -> ServiceStatus:
        raise NotImplementedError

    def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        raise NotImplementedError

    def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        raise NotImplementedError

    def releases(self, key: Key) -> Sequence[Release]:
        raise NotImplementedError

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        raise NotImplementedError

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        raise NotImplementedError

    def events(self, key: Key | None, after: int = 0, limit: int = 200) -> Sequence[Event]:
        raise NotImplementedError

    def log_files(self, key: Key, replica: str, previous: bool) -> Sequence[tuple[str, Path]]:
        """(replica id, file), newest replica last; `previous`: of replicas that have ended."""
        raise NotImplementedError

    def delete(self, key: Key) -> None:
        raise NotImplementedError
