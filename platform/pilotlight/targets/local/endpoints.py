"""Which replicas each component behind another one has, as files: how a router learns where its requests may go.

`<folder>/<namespace>/<workload>.json` is a list of the gateway's `Replica`. It is written with the table that the
gateway gets, so that both know the same. Files are replaced whole; a reader never sees half of one.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import json

from pilotlight.gateway.table import Replica, Route

Place = tuple[str, str]  # namespace and workload
log = logging.getLogger(__name__)


def endpoints_of(routes: Iterable[Route]) -> dict[Place, tuple[Replica, ...]]:
    """Of the workloads that only other components ask: a service of one component needs no file."""
    return {
        (route.namespace, route.name): tuple(replica for backend in route.backends for replica in backend.replicas)
        for route in routes
        if route.internal
    }


class Endpoints:
    """Remembers what it wrote. What lies there from an earlier control process goes with the first update."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Place, tuple[Replica, ...]] | None = None

    def update(self, routes: Iterable[Route]) -> None:
        """Files are a copy of what is known: a disk that takes none of them must not stop the requests."""
        wanted = endpoints_of(routes)
        try:
            known = self._found() if self._written is None else self._written
            self._write(wanted, known)
            self._written = wanted
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder, error)
            self._written = None

    def _found(self) -> dict[Place, tuple[Replica, ...]]:
        """Of unknown content, so that each is written anew or removed."""
        nobody = (Replica("", 0),)
        return {(file.parent.name, file.stem): nobody for file in self._folder.glob("*/*.json")}

    def _write(
        self, wanted: Mapping[Place, tuple[Replica, ...]], known: Mapping[Place, tuple[Replica, ...]]
    ) -> None:  # fmt: skip
        for place, replicas in wanted.items():
            if known.get(place) != replicas:
                file = self._file(place)
                file.parent.mkdir(parents=True, exist_ok=True)
                fresh = file.with_suffix(".new")
                fresh.write_bytes(json.encode(replicas))
                fresh.replace(file)
        for place in known.keys() - wanted.keys():
            self._file(place).unlink(missing_ok=True)

    def _file(self, place: Place) -> Path:
        namespace, workload = place
        return self._folder / namespace / f"{workload}.json"
