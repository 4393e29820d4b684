"""LoRA adapters of running replicas: loaded and unloaded by the API of their engine, so that no engine restarts.

A replica is routed to once it has the adapters of its service. A name of a route leads to an adapter once every ready
replica has it; the one it replaces is unloaded after the requests that may still use it.
"""

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from msgspec import structs

from pilotlight.catalogue.engine_programs import PREDICTOR_ADAPTERS, AdapterSupport, adapter_support
from pilotlight.contract import is_predictor_image
from pilotlight.errors import PlatformError
from pilotlight.gateway.routing_table import RouteAdapter
from pilotlight.k8s.adapters import Adapter, engine_name
from pilotlight.k8s.model_pins import ModelPin, is_local, local_path
from pilotlight.k8s.names import MODEL_ROLES
from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import RevisionSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.store.store import EventRecorder
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import ModelState, RevisionStatus
from pilotlight.wire.http_client import LoopbackResponse, request

CALL_TIMEOUT_S: Final = 300.0  # an adapter of 1 GB from a slow disk
RETRY_S: Final = 5.0
SHOWN: Final = 300  # characters of an engine's error
Kind = Literal["Normal", "Warning"]
log = logging.getLogger("pilotlight.adapters")


class AdapterLoader:
    """`changed` is called after every change of what a replica has; `drain_s`: before an adapter is unloaded."""

    def __init__(
        self, home: Home, events: EventRecorder, changed: Callable[[ServiceRun], None], drain_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._home, self._events, self._changed, self._drain_s, self._clock = home, events, changed, drain_s, clock
        self._loaded: dict[str, dict[str, Adapter]] = {}  # by replica and name of the engine
        self._refused: dict[str, dict[str, str]] = {}  # likewise: why the engine does not load it
        self._complete: set[str] = set()  # replicas that have had all adapters once
        self._unused_since: dict[tuple[str, str], float] = {}  # by replica and name of the engine
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def reconcile(self, run: ServiceRun, replicas: Iterable[Replica]) -> None:
        """Load and unload what the ready replicas of a service lack or have too much, in the background."""
        wanted = {each.model: each for each in run.spec.adapters if each.dynamic}
        for replica in replicas:
            revision, loaded = run.revisions.get(replica.revision), self._loaded.get(replica.id, {})
            settled = loaded.keys() | self._refused.get(replica.id, {}).keys()
            support = _support(revision.spec) if revision is not None else None
            for model in wanted:
                self._unused_since.pop((replica.id, model), None)  # it has requests again: the next drain is a new one
            if replica.state != "ready" or replica.id in self._tasks:
                continue
            if support is None or not wanted.keys() - settled:
                self._complete.add(replica.id)
            if support is not None and (wanted.keys() - settled or self._unused(replica.id, wanted)):
                task = asyncio.get_running_loop().create_task(self._synchronize(run, replica, support))
                self._tasks[replica.id] = task
                task.add_done_callback(partial(self._done, run, replica))

    def forget(self, replica: str) -> None:
        self._loaded.pop(replica, None)
        self._refused.pop(replica, None)
        self._complete.discard(replica)
        self._unused_since = {key: since for key, since in self._unused_since.items() if key[0] != replica}
        if (task := self._tasks.get(replica)) is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def has_adapters(self, run: ServiceRun, replica: Replica) -> bool:
        """Whether a replica can be routed to: it has had each adapter once, as far as its engine loads them."""
        return replica.id in self._complete or not any(each.dynamic for each in run.spec.adapters)

    def routed(self, run: ServiceRun, replicas: Sequence[str]) -> tuple[RouteAdapter, ...]:
        """Return the adapters that all these replicas have; of a name whose new adapter is loading, the old one."""
        routed: dict[str, tuple[RouteAdapter, ...]] = {}
        for name in dict.fromkeys(each.name for each in run.spec.adapters):
            wanted = [each for each in run.spec.adapters if each.name == name]
            if not all(self._is_on_all(each, replicas) for each in wanted):
                before = (each for replica in replicas[:1] for each in self._loaded.get(replica, {}).values())
                wanted = [each for each in before if each.name == name and self._is_on_all(each, replicas)][-1:]
            routed[name] = tuple(
                RouteAdapter(each.name, each.model, each.fields, each.percent, each.base_fields) for each in wanted
            )
        return tuple(each for adapters in routed.values() for each in adapters)

    def status(self, run: ServiceRun, replicas: Iterable[Replica]) -> tuple[RevisionStatus, ...]:
        """Return the state of each adapter, as of a revision: canaries compare adapters as they do revisions."""
        ready = [each.id for each in replicas if each.state == "ready"]
        workload = run.spec.workloads[0]
        rows: list[RevisionStatus] = []
        for each in (each for each in run.spec.adapters if each.dynamic):
            reasons = [reason for name in ready if (reason := self._refused.get(name, {}).get(each.model))]
            number = sum(each.model in self._loaded.get(name, {}) for name in ready)
            state: ModelState = "FailedToLoad" if reasons else "Loaded" if number == len(ready) else "Loading"
            row = RevisionStatus(each.model, workload.name, workload.role, each.percent, (each.name,), number)
            rows.append(structs.replace(row, model_state=state if ready else "Standby", reason="; ".join(reasons[:1])))
        return tuple(rows)

    def _is_on_all(self, adapter: Adapter, replicas: Iterable[str]) -> bool:
        return not adapter.dynamic or all(adapter.model in self._loaded.get(each, {}) for each in replicas)

    def _done(self, run: ServiceRun, replica: Replica, task: asyncio.Task[None]) -> None:
        del self._tasks[replica.id]
        if not task.cancelled():
            if error := task.exception():
                log.error("adapters of %s: %r", replica.id, error)
            self._changed(run)

    async def _synchronize(self, run: ServiceRun, replica: Replica, support: AdapterSupport) -> None:
        wanted = {each.model: each for each in run.spec.adapters if each.dynamic}
        loaded = self._loaded.setdefault(replica.id, {})
        refused = {model: why for model, why in self._refused.get(replica.id, {}).items() if model in wanted}
        self._refused[replica.id] = refused
        for model, adapter in wanted.items():
            if model not in loaded and model not in refused:
                await self._load(run, replica, support, adapter)
        now, loop = self._clock(), asyncio.get_running_loop()
        for model in loaded.keys() - wanted.keys():
            if (replica.id, model) not in self._unused_since:
                self._unused_since[replica.id, model] = now
                loop.call_later(self._drain_s, self._changed, run)
        for model in self._unused(replica.id, wanted):
            adapter = loaded.pop(model)
            self._unused_since.pop((replica.id, model), None)
            await self._call(run, replica, support.unload, {"lora_name": _engine_name(adapter)})
            self._record(run, replica, "AdapterUnloaded", f"{adapter.name} ({adapter.model})")

    def _unused(self, replica: str, wanted: Mapping[str, Adapter]) -> list[str]:
        """Return the adapters to look at: unused ones whose time is not known yet, or that no request can use."""
        before = self._clock() - self._drain_s
        unused = (model for model in self._loaded.get(replica, {}) if model not in wanted)
        return [model for model in unused if self._unused_since.get((replica, model), before) <= before]

    async def _load(self, run: ServiceRun, replica: Replica, support: AdapterSupport, adapter: Adapter) -> None:
        try:
            path = await self._path(adapter, support)
        except (OSError, PlatformError) as error:
            problem = str(error)
        else:
            body = {"lora_name": _engine_name(adapter), "lora_path": path}
            response = await self._call(run, replica, support.load, body)
            text = response.body.decode(errors="replace")
            if response.ok or "already" in text.lower():  # by a control process before this one
                self._loaded[replica.id][adapter.model] = adapter
                self._record(run, replica, "AdapterLoaded", f"{adapter.name} ({adapter.model})")
                return
            problem = f"POST {support.load} returned {response.status}: {text[:SHOWN]}" if response.status else ""
        if problem:
            self._refused[replica.id][adapter.model] = problem
            message = f"{adapter.name} was not loaded from {adapter.uri}: {problem}; fix it and deploy again"
            self._record(run, replica, "AdapterFailed", message, "Warning")
        else:
            await asyncio.sleep(RETRY_S)  # the engine did not answer; its probes decide on it meanwhile

    async def _call(self, run: ServiceRun, replica: Replica, path: str, body: dict[str, str]) -> LoopbackResponse:
        revision = run.revisions.get(replica.revision)
        trusted = revision is not None and revision.spec.container.has_token  # others must not learn it
        token = self._home.token.read_text().strip() if trusted and self._home.token.exists() else ""
        data = json.dumps(body).encode()
        return await request(replica.port, path, CALL_TIMEOUT_S, host=replica.host, body=data, token=token)

    async def _path(self, adapter: Adapter, support: AdapterSupport) -> str:
        """Return what the engine reads the adapter from: its snapshot, or a folder that it is fetched into."""
        if is_local(adapter.uri):
            path = local_path(adapter.uri)
            snapshots = ModelSnapshots(self._home.models)
            pin = ModelPin(adapter.digest)
            return await asyncio.to_thread(snapshots.serving_path, pin, path) if adapter.digest else path
        if support is PREDICTOR_ADAPTERS:
            return adapter.uri  # it fetches by itself
        content = f"{adapter.uri} {adapter.digest}"
        folder = self._home.cache / "fetched" / hashlib.sha256(content.encode()).hexdigest()[:32]
        command = (sys.executable, "-P", "-m", "pilotlight_predictor", "fetch", adapter.uri, str(folder))
        fetch = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await fetch.communicate()
        if fetch.returncode:
            raise PlatformError(stderr.decode(errors="replace").strip()[-SHOWN:])
        return str(folder)

    def _record(self, run: ServiceRun, replica: Replica, reason: str, message: str, kind: Kind = "Normal") -> None:
        self._events.record(run.key, f"Replica/{replica.id}", reason, message, kind)


def _engine_name(adapter: Adapter) -> str:
    return engine_name(adapter.name, adapter.uri, adapter.digest)


def _support(revision: RevisionSpec) -> AdapterSupport | None:
    """Return the API of a revision's engine; None: it has none, as routers and transformers."""
    container = revision.container
    if revision.role not in MODEL_ROLES:
        return None
    if is_predictor_image(container.image):
        return PREDICTOR_ADAPTERS
    named = {"image": container.image, "command": container.command, "args": container.args}
    support = adapter_support(named)
    return support if support is not None and support.load else None
