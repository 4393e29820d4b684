"""Leader election by a Lease, so that one controller acts; kubernetes.leaderelection with client-go's times."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from pilotlight.controller.settings import ControllerSettings
from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.controller_finalizer import ANNOTATION_NAMESPACES, LEASE_NAME
from pilotlight.targets.kubernetes.kinds import LEASE, unless_forbidden

DURATION_S, DEADLINE_S, RETRY_S = 15, 10, 2
_UNKNOWN: Final[dict[str, Any]] = {}
log = logging.getLogger("pilotlight.controller")


class Leadership:
    """Blocks in `acquire` until this process leads. `on_lost` is called in a thread when it does not any more."""

    def __init__(self, cluster: Cluster, settings: ControllerSettings, on_lost: Callable[[], None]) -> None:
        from kubernetes import client
        from kubernetes.leaderelection.resourcelock import leaselock

        self._cluster, self._settings, self._on_lost = cluster, settings, on_lost
        library: Any = leaselock  # untyped
        self._lock = library.LeaseLock(LEASE_NAME, settings.lease_namespace, f"{socket.gethostname()}_{os.getpid()}")
        self._lock.api_instance = client.CoordinationV1Api(cluster.connection.api)
        unreachable = client.ApiException(reason="the API server does not respond")
        self._lock.get = _failing(self._lock.get, (False, unreachable))
        self._write = _failing(self._lock.update, False)
        self._lock.update = self._update
        self._leads, self._released, self._writing = threading.Event(), False, threading.Lock()

    def acquire(self) -> None:
        namespace = self._settings.lease_namespace
        if unless_forbidden(lambda: self._cluster.get("v1", "Namespace", "", namespace), _UNKNOWN) is None:
            raise NotFound(f"there is no namespace {namespace}", "create it, or name another: --lease-namespace")
        threading.Thread(target=self._run, name="leader election", daemon=True).start()
        if not self._leads.wait(DURATION_S):
            log.info("waiting for the Lease %s/%s: held by another controller, or not writable", namespace, LEASE_NAME)
            self._leads.wait()
        annotations = {ANNOTATION_NAMESPACES: ",".join(self._settings.namespaces)}
        self._cluster.merge(self._lease(), {"metadata": {"annotations": annotations}})

    def _run(self) -> None:
        from kubernetes.leaderelection import electionconfig, leaderelection

        config: Any = electionconfig
        election: Any = leaderelection
        configured = config.Config(
            self._lock, lease_duration=DURATION_S, renew_deadline=DEADLINE_S, retry_period=RETRY_S,
            onstarted_leading=self._leads.set, onstopped_leading=lambda: None,
        )  # fmt: skip
        try:
            election.LeaderElection(configured).run()
        finally:  # of an error too: who cannot renew the Lease does not lead
            if not self._released:
                self._on_lost()

    def release(self) -> None:
        """Give the Lease up, so that another process leads without waiting for its end. Never raises."""
        with self._writing:
            self._released = True
            try:
                self._cluster.merge(self._lease(), {"spec": {"holderIdentity": None}})
            except PlatformError as error:
                log.warning("the Lease is left to expire: %s", error)

    def _update(self, *arguments: Any) -> Any:
        """Renew the Lease, unless this process has released it."""
        with self._writing:
            return not self._released and self._write(*arguments)

    def _lease(self) -> dict[str, Any]:
        named = {"name": LEASE_NAME, "namespace": self._settings.lease_namespace}
        return {"apiVersion": LEASE[0], "kind": LEASE[1], "metadata": named}


def _failing(call: Callable[..., Any], failure: Any) -> Callable[..., Any]:
    """Return the call with `failure` for errors of the connection: the library tries again after one, until its
    deadline, and would end with the other."""
    from urllib3.exceptions import HTTPError

    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except HTTPError:
            return failure

    return called
