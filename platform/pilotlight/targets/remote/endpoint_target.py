"""Target of a cloud: the verbs over its `Endpoints`. Releases, overrides and events are in a file of the home."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn
from uuid import uuid4

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.k8s.manifest import Manifest
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.interpret import revisions_of
from pilotlight.targets.local.store.releases import live_manifests
from pilotlight.targets.local.store.schema import StoredService
from pilotlight.targets.local.store.store import EventRecorder, Store
from pilotlight.targets.remote.endpoint import Endpoints, EndpointSpec, EndpointState, endpoint_of, status_of
from pilotlight.targets.target import (
    NO_GATEWAY,
    CanaryRecord,
    Event,
    Key,
    Release,
    Sample,
    ServiceRoute,
    ServiceStatus,
    Share,
    service_argument,
)

Json = Any
POLL_S: Final = 2.0
INSTANCE: Final = "instance_id"  # option of brev that no release changes: the container would stay on that instance


class EndpointTarget:
    """Implements `targets.target.Target`. The file is opened for each call: calls may come from several threads."""

    poll_s = POLL_S
    embedded = False

    def __init__(self, endpoints: Endpoints, home: Home, options: Mapping[str, str] | None = None) -> None:
        self.name = endpoints.name
        self._endpoints, self._home, self._options = endpoints, home, options or {}
        self._secrets: dict[Key, Mapping[str, str]] = {}

    def capabilities(self) -> Mapping[str, Json]:
        return {"target": self.name, "target_options": dict(self._options)}

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        return (), ()

    def live(self, key: Key) -> list[Manifest]:
        with self._store() as store:
            stored = store.service(key)
            if stored is None:
                return []
            return [Manifest(each) for each in live_manifests(stored, self._status(store, stored))]

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        key = (release.namespace, release.name)
        with self._store() as store:
            stored = store.service(key)
            overrides = {} if reset or stored is None else stored.overrides
            endpoint = endpoint_of(release.manifests, overrides, self._home_id())
            if stored and (before := self._endpoint(stored).options.get(INSTANCE)) != endpoint.options.get(INSTANCE):
                hint = f"platformctl delete {service_argument(key)} --target {self.name}"
                raise UsageError(
                    f"{'/'.join(key)} runs with {INSTANCE} = {before or 'none'}, delete it there first", hint
                )
            self._endpoints.check(endpoint)
            if dry_run:
                return status_of(endpoint, EndpointState("pending"), self.name)
            generation = store.apply(release, revisions_of(release.manifests), utc_now(), reset)
            self._put(store, endpoint._replace(generation=generation), "Deployed", release.note or "deploy")
            return self._status(store, self._stored(store, key))

    def status(self, key: Key) -> ServiceStatus:
        with self._store() as store:
            return self._status(store, self._stored(store, key))

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        found = []
        with self._store() as store:
            for stored in store.services():
                if namespace in (None, stored.namespace):
                    try:
                        found.append(self._status(store, stored))
                    except NotFound:  # its deletion has ended
                        continue
        return found

    def releases(self, key: Key) -> Sequence[Release]:
        with self._store() as store:
            self._stored(store, key)
            return store.releases(key)

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        if bounds and bounds.get("minReplicas") == 0:
            raise UsageError(f"min is 0, but {self.name} cannot queue requests at zero; it must be at least 1")
        with self._store() as store:
            stored = self._stored(store, key)
            workload = self._endpoint(stored).workload
            endpoint = endpoint_of(stored.manifests, {workload: bounds or {}}, self._home_id())
            self._endpoints.check(endpoint)
            store.set_overrides(key, workload, bounds)
            summary = ", ".join(f"{name} {value}" for name, value in (bounds or {}).items()) or "reset to the manifest"
            self._put(store, endpoint._replace(generation=stored.generation), "Scaled", f"manual: {summary}")
            return self._status(store, self._stored(store, key))

    def delete(self, key: Key) -> None:
        with self._store() as store:
            stored = self._stored(store, key)
            store.begin_delete(key)
            self._endpoints.remove(self._endpoint(stored))
            EventRecorder(store).record(
                key, f"Service/{key[1]}", "Deleted", f"its endpoint is removed from {self.name}"
            )
        self._secrets.pop(key, None)

    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        """Set the values of a service's own Secret, before it is applied; they are kept in memory."""
        self._secrets[key] = dict(values)

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        self._refuse("split traffic")

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return ()

    def canary(self, key: Key) -> CanaryRecord | None:
        return None

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        self._refuse("run a canary")

    def query(self, promql: str) -> Sequence[Sample]:
        self._refuse("query metrics")

    def _refuse(self, verb: str) -> NoReturn:
        raise UsageError(f"{self.name} cannot {verb}: {NO_GATEWAY}", "see docs/how-to/targets.md")

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        with self._store() as store:
            endpoint = self._endpoint(self._stored(store, (status.namespace, status.name)))
        if not status.url:
            hint = f"platformctl status {service_argument(endpoint.key)} --target {self.name}"
            raise PlatformError(f"{'/'.join(endpoint.key)} has no address: {status.message or status.phase}", hint)
        return self._endpoints.route(endpoint, status.url)

    def probe(self, status: ServiceStatus) -> str:
        """Return no problem: the status comes from a request to the endpoint."""
        return ""

    def record_status(self, status: ServiceStatus) -> None:
        """Do nothing: other clients ask the cloud."""

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        with self._store() as store:
            endpoint = self._endpoint(self._stored(store, key))
        if replica not in ("", endpoint.name, endpoint.revision):
            raise NotFound(f"no replica is called {replica}: {endpoint.name} has one log", "leave out --replica")
        return self._endpoints.logs(endpoint, tail, follow=follow)  # those of previous replicas are among them

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        """Yield the stored events of releases and those of the cloud, by their time."""
        known: set[tuple[str, ...]] = set()
        while True:
            for event in sorted(self._events(key), key=lambda each: each.at):
                if (identity := (event.at, event.object, event.reason, event.message)) not in known:
                    known.add(identity)
                    yield event
            if not follow:
                return
            time.sleep(POLL_S)

    def _events(self, key: Key | None) -> Sequence[Event]:
        with self._store() as store:
            stored = store.service(key) if key else None
            own = store.events(key)
        return [*own, *(self._endpoints.events(self._endpoint(stored)) if stored else ())]

    @contextmanager
    def _store(self) -> Iterator[Store]:
        folder = self._home.create().root / "targets"
        folder.mkdir(mode=0o700, exist_ok=True)
        store = Store.open(folder / f"{self.name}.db")
        try:
            yield store
        finally:
            store.close()

    def _home_id(self) -> str:
        """Return a random id of the home, which is part of the endpoints' names."""
        file = self._home.root / "targets" / "id"
        if not file.exists():
            file.write_text(uuid4().hex)
        return file.read_text()

    def _stored(self, store: Store, key: Key) -> StoredService:
        stored = store.service(key)
        if stored is None:
            hint = f"see platformctl list --target {self.name}"
            raise NotFound(f"there is no service {'/'.join(key)} on {self.name}", hint)
        return stored

    def _endpoint(self, stored: StoredService) -> EndpointSpec:
        endpoint = endpoint_of(stored.manifests, stored.overrides, self._home_id())
        return endpoint._replace(generation=stored.generation)

    def _put(self, store: Store, endpoint: EndpointSpec, reason: str, note: str) -> None:
        record, subject = EventRecorder(store).record, f"Service/{endpoint.key[1]}"
        try:
            self._endpoints.put(endpoint, self._secrets.get(endpoint.key, {}))
        except PlatformError as error:
            record(endpoint.key, subject, "Failed", str(error), "Warning")
            raise
        record(endpoint.key, subject, reason, f"generation {endpoint.generation}: {note}")

    def _status(self, store: Store, stored: StoredService) -> ServiceStatus:
        """Return the status. Raise NotFound once an endpoint that is being deleted is gone."""
        endpoint = self._endpoint(stored)
        seen = self._endpoints.get(endpoint)
        if seen is None and stored.deleting:
            store.finish_delete(stored.key)
            self._stored(store, stored.key)
        lost = EndpointState("gone", reason=f"{self.name} has no {endpoint.name} any more; deploy it again")
        return status_of(endpoint, seen or lost, self.name, stored)
