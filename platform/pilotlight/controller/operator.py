"""The controller process: watches, finalizers and one task per service, by kopf; work in threads.

    watch → object cache → wake-up of the services concerned → reconciler (thread)

kopf writes the finalizer and nothing else into objects. It is imported here only.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import kopf

from pilotlight.canaries.controller import WakeEvent, controller_thread, run_controller
from pilotlight.controller import decision
from pilotlight.controller.api_session import open_session
from pilotlight.controller.decision import MAX_BACKOFF_S
from pilotlight.controller.object_cache import LABELLED, WATCHED, CachedCluster, ObjectCache
from pilotlight.controller.reconciler import Reconciler
from pilotlight.controller.settings import ControllerSettings
from pilotlight.errors import PlatformError
from pilotlight.k8s import names
from pilotlight.spec.problems import InvalidDocument
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import KubeConnection
from pilotlight.targets.kubernetes.inferenceservice_mirror import Kind
from pilotlight.targets.target import Key

Json = Any
SETTLE_S: Final = 0.5  # between two passes over one service: changes come in groups
log = logging.getLogger("pilotlight.controller")


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing: the release is what a document is compared with."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return


class Operator:
    """Handlers of kopf over one reconciler."""

    def __init__(self, connection: KubeConnection, settings: ControllerSettings) -> None:
        everywhere = [kind for kind in WATCHED if not (settings.namespaces and kind == kinds.REFERENCE_GRANT)]
        self.cluster = CachedCluster(connection, ObjectCache(), [*everywhere, *settings.kinds])
        self.reconciler = Reconciler(self.cluster, settings)
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.workers, "reconcile")
        self._wakes: dict[tuple[Kind, Key], asyncio.Event] = {}

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until SIGTERM, SIGINT or `stop`; ends after the running passes."""
        await asyncio.to_thread(self.cluster.fill, self._settings.namespaces)
        canaries = WakeEvent()
        run_canaries = partial(run_controller, self.reconciler.target, canaries, min_pause_s=SETTLE_S)
        resync = asyncio.create_task(self._resync())
        try:
            async with controller_thread(canaries, run_canaries):
                await kopf.operator(
                    registry=self.registry(), settings=self.kopf_settings(), standalone=True,
                    clusterwide=not self._settings.namespaces, namespaces=self._settings.namespaces,
                    liveness_endpoint=self._settings.liveness or None, stop_flag=stop,
                )  # fmt: skip
        finally:
            resync.cancel()
            await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.persistence.finalizer = names.FINALIZER
        settings.persistence.diffbase_storage = NoDiffBase()
        settings.persistence.progress_storage = kopf.StatusProgressStorage()
        settings.posting.enabled = False
        settings.watching.server_timeout = 300
        settings.watching.label_selectors[_is_labelled] = names.LABEL_SERVICE
        if self._settings.webhook_port:
            settings.admission.server = kopf.WebhookServer(
                port=self._settings.webhook_port, certfile=self._settings.webhook_cert,
                pkeyfile=self._settings.webhook_key,
            )  # fmt: skip
        return settings

    def registry(self) -> kopf.OperatorRegistry:
        registry, on = kopf.OperatorRegistry(), cast(Any, kopf.on)  # its handlers declare no keywords that they ignore
        on.login(registry=registry)(self._login)
        for kind in self.cluster.cached:
            on.event(**_fields(*kind), registry=registry)(self._changed)
        for kind in self._settings.kinds:
            fields = _fields(*kind)
            on.daemon(**fields, registry=registry, cancellation_timeout=1.0)(partial(self._service, kind))
            on.delete(**fields, registry=registry)(partial(self._delete, kind))
            if self._settings.webhook_port:
                on.validate(**fields, registry=registry, id="validate")(self._validate)
        return registry

    async def _login(self, **kwargs: Any) -> kopf.AiohttpSession:
        configuration = self.cluster.connection.api.configuration
        headers = [each["value"] for each in configuration.auth_settings().values() if each["value"]]
        scheme, _, token = str(headers[0]).partition(" ") if headers else ("", "", "")
        return open_session(kopf.ConnectionInfo(
            server=configuration.host, ca_path=configuration.ssl_ca_cert, insecure=not configuration.verify_ssl,
            scheme=scheme or None, token=token or None, certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        ))  # fmt: skip

    async def _changed(self, event: Mapping[str, Json], **kwargs: Any) -> None:
        """Take a change into the cache and wake the services that it concerns: its own, or all for the catalogue."""
        document = event["object"]
        (self.cluster.cache.discard if event["type"] == "DELETED" else self.cluster.cache.put)(document)
        namespace = str(document["metadata"].get("namespace") or "")
        is_service = (document["apiVersion"], document["kind"]) in self._settings.kinds
        name = document["metadata"]["name"] if is_service else kinds.labels(document).get(names.LABEL_SERVICE)
        if name is not None:
            for kind in self._settings.kinds:
                if wake := self._wakes.get((kind, (namespace, name))):
                    wake.set()
        else:
            for (_, key), wake in self._wakes.items():
                if namespace in ("", key[0]):
                    wake.set()

    async def _service(self, service_kind: Kind, namespace: str, name: str, **_: Any) -> None:
        """Reconcile one service whenever something of it changes, until it is deleted."""
        key = (namespace, name)
        wake = self._wakes[service_kind, key] = asyncio.Event()
        try:
            while True:
                wake.clear()
                pause = await self._in_thread(self._reconcile, service_kind, key)
                await asyncio.sleep(SETTLE_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), pause)
        finally:
            if self._wakes.get((service_kind, key)) is wake:
                del self._wakes[service_kind, key]

    def _reconcile(self, kind: Kind, key: Key) -> float:
        try:
            return self.reconciler.reconcile(kind, key)
        except PlatformError as error:
            log.warning("%s: %s", "/".join(key), error)
        except Exception:
            log.exception("reconciling %s failed; this is a bug, retrying", "/".join(key))
        return MAX_BACKOFF_S / 10

    async def _delete(self, service_kind: Kind, namespace: str, name: str, **_: Any) -> None:
        """Delete what a document stands for; then kopf removes the finalizer."""
        pause = 1.0
        while True:
            try:
                await self._in_thread(self.reconciler.delete, service_kind, (namespace, name))
                return
            except PlatformError as error:
                # Not an error to kopf, which would write its progress into the object.
                log.warning("%s/%s cannot be deleted yet: %s", namespace, name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_BACKOFF_S)

    async def _validate(self, body: Mapping[str, Json], old: Json, warnings: list[str], **_: Any) -> None:
        """Refuse an invalid document at admission. One that was stored before may still be labelled and deleted."""
        contents = [(each.get("spec"), each["metadata"].get("annotations")) for each in (old, body) if each]
        if "deletionTimestamp" in body["metadata"] or (old and contents[0] == contents[1]):
            return
        try:
            warnings += map(str, await self._in_thread(self.reconciler.check, dict(body)))
        except InvalidDocument as error:
            raise kopf.AdmissionError(decision.failure(error).message, 422) from None
        except Exception:  # kopf would refuse the document; as without a webhook, its condition will tell
            log.exception("a manifest cannot be validated at admission and is accepted")

    async def _resync(self) -> None:
        """List everything again from time to time, since a watch that broke may have missed deletions."""
        while True:
            await asyncio.sleep(self._settings.resync_s)
            try:
                await asyncio.to_thread(self.cluster.fill, self._settings.namespaces)
            except PlatformError as error:
                log.warning("resync: %s", error)
            for wake in self._wakes.values():
                wake.set()

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *arguments))


def _is_labelled(resource: kopf.Resource) -> bool:
    return ("/".join(filter(None, (resource.group, resource.version))), str(resource.kind)) in LABELLED


def _fields(version: str, kind: str) -> Any:
    group, _, name = version.rpartition("/")
    return {"group": group, "version": name, "kind": kind}
