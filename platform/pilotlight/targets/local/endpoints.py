"""Endpoint files of internal workloads, from which a router component learns its upstream replicas.

`<folder>/<namespace>/<workload>.json` is a list of the gateway's `Replica`, written together with each routing table.
Files are replaced atomically.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import json

from pilotlight.gateway.table import Replica, Route

WorkloadKey = tuple[str, str]  # namespace and workload
log = logging.getLogger(__name__)


def endpoints_of(routes: Iterable[Route]) -> dict[WorkloadKey, tuple[Replica, ...]]:
    """Return the replicas of workloads that only other components call."""
    return {
        (route.namespace, route.name): tuple(replica for backend in route.backends for replica in backend.replicas)
        for route in routes
        if route.internal
    }


class EndpointFiles:
    """Writes changed files only. The first update removes files of an earlier control process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[WorkloadKey, tuple[Replica, ...]] | None = None

    def update(self, routes: Iterable[Route]) -> None:
        """Write the endpoints of a routing table; a failed write is logged and retried with the next table."""
        endpoints = endpoints_of(routes)
        try:
            known = self._existing() if self._written is None else self._written
            self._write(endpoints, known)
            self._written = endpoints
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder, error)
            self._written = None

    def _existing(self) -> dict[WorkloadKey, tuple[Replica, ...]]:
        """Return the files present, with an impossible content so that each is rewritten or removed."""
        unknown = (Replica("", 0),)
        return {(file.parent.name, file.stem): unknown for file in self._folder.glob("*/*.json")}

    def _write(
        self, wanted: Mapping[WorkloadKey, tuple[Replica, ...]], known: Mapping[WorkloadKey, tuple[Replica, ...]]
    ) -> None:  # fmt: skip
        for key, replicas in wanted.items():
            if known.get(key) != replicas:
                file = self._file(key)
                file.parent.mkdir(parents=True, exist_ok=True)
                fresh = file.with_suffix(".new")
                fresh.write_bytes(json.encode(replicas))
                fresh.replace(file)
        for key in known.keys() - wanted.keys():
            self._file(key).unlink(missing_ok=True)

    def _file(self, key: WorkloadKey) -> Path:
        namespace, workload = key
        return self._folder / namespace / f"{workload}.json"
