"""Rollout of a release in an order in which no request is lost.

A route may reference a canary's variant once it has a ready pod, and a variant may be deleted once no route references
it. Knative ensures this itself; for Deployments behind a Gateway it is done here.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import TimedOut
from pilotlight.targets.kubernetes import apply as kubernetes_apply
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
SLICE: Final = ("discovery.k8s.io/v1", "EndpointSlice")
POLL_S: Final = 0.5
ROUTED_S: Final = 20.0  # for the Gateway's controller to observe a route
SETTLE_S: Final = 2.0  # from there to the last proxy
DEADLINE_S: Final = 600.0
LEFT_S: Final = 30.0  # for the cluster to collect what belonged to a Knative Service


class Rollout:
    """Rollout of one release. `failed` returns why a variant cannot become ready; empty while it may.

    Without `wait`, a variant that is not ready raises TimedOut at once: the caller comes again.
    """

    def __init__(
        self, cluster: Cluster, key: Key, failed: Callable[[], str], *, force: bool, wait: bool = True,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._cluster, self._key, self._failed, self._force, self._wait = cluster, key, failed, force, wait
        self._clock, self._sleep = clock, sleep

    def apply(self, documents: Sequence[Document], live: Iterable[Document]) -> None:
        self._leave_knative(documents)
        deferred = routes_with_new_backends(documents, live)
        # First everything but routes with new backends: those would send requests to variants without ready pods.
        kubernetes_apply.apply(self._cluster, [each for each in documents if each not in deferred], force=self._force)
        for route in deferred:
            self._await_backends(route, documents)
        kubernetes_apply.apply(self._cluster, deferred, force=self._force)
        obsolete = kubernetes_apply.obsolete(self._cluster, self._key, documents)
        # Proxies may still use the old route: obsolete backends are deleted once it is gone from all of them.
        if any(each["kind"] in ("Deployment", "Service") for each in obsolete):
            self._await_routes(documents)
        kubernetes_apply.delete(self._cluster, obsolete)

    def _leave_knative(self, documents: Sequence[Document]) -> None:
        """Delete what Knative runs of a service that leaves it, and wait until its Services are gone: the names are
        needed. Requests fail until the first pod is ready."""
        replacing = kubernetes_apply.replacing_knative(self._cluster, self._key, documents)
        if not replacing:
            return
        leaving = kubernetes_apply.leaving_knative(self._cluster, self._key, documents)
        kubernetes_apply.delete(self._cluster, leaving)
        until = self._clock() + LEFT_S
        names = [str(each["metadata"]["name"]) for each in replacing]
        while names := [name for name in names if self._is_owned_by_knative(name)]:
            if self._clock() >= until:
                raise TimedOut(f"Knative Services still exist: {', '.join(names)}")
            self._sleep(POLL_S)

    def _is_owned_by_knative(self, service: str) -> bool:
        document = self._cluster.get("v1", "Service", self._key[0], service) or {"metadata": {}}
        return any(map(kubernetes_apply.in_knative_group, document["metadata"].get("ownerReferences") or ()))

    def _await_backends(self, route: Document, documents: Sequence[Document]) -> None:
        until = self._clock() + (deadline_s(documents) if self._wait else 0.0)
        waiting = backends(route)
        while waiting := [name for name in waiting if not self._is_ready(name)]:
            reason = self._failed()
            if reason or self._clock() >= until:
                message = f"{', '.join(waiting)} does not respond, so no requests are sent there"
                message += f": {reason}" if reason else ""
                raise TimedOut(message, f"platformctl canary abort {self._key[1]}")
            self._sleep(POLL_S)

    def _is_ready(self, service: str) -> bool:
        slices = self._cluster.list(*SLICE, self._key[0], f"kubernetes.io/service-name={service}")
        return any(kinds.is_endpoint_ready(point) for each in slices for point in each.get("endpoints") or ())

    def _await_routes(self, documents: Sequence[Document]) -> None:
        """Wait until Gateways have observed the routes, for ROUTED_S at most: not all of them report it."""
        names = [str(each["metadata"]["name"]) for each in documents if each["kind"] == "HTTPRoute"]
        until = self._clock() + ROUTED_S
        while self._clock() < until:
            routes = [self._cluster.get(*kinds.HTTP_ROUTE, self._key[0], name) for name in names]
            if all(each is None or is_observed(each) for each in routes):
                break
            self._sleep(POLL_S)
        if names:
            self._sleep(SETTLE_S)


def routes_with_new_backends(documents: Iterable[Document], live: Iterable[Document]) -> list[Document]:
    """Return existing routes that get new backends, which must be ready first."""
    known = {each["metadata"]["name"]: set(backends(each)) for each in live if each["kind"] == "HTTPRoute"}
    routes = [each for each in documents if each["kind"] == "HTTPRoute" and each["metadata"]["name"] in known]
    return [each for each in routes if set(backends(each)) - known[each["metadata"]["name"]]]


def backends(route: Document) -> list[str]:
    """Return the Services of its own namespace that the route sends requests to."""
    references = [each for rule in route["spec"].get("rules") or () for each in rule.get("backendRefs") or ()]
    return [str(each["name"]) for each in references if each.get("weight", 1) and not each.get("namespace")]


def is_observed(route: Document) -> bool:
    """Whether every parent Gateway has observed the current generation."""
    parents = (route.get("status") or {}).get("parents") or ()
    seen = [int(each.get("observedGeneration") or 0) for parent in parents for each in parent.get("conditions") or ()]
    return bool(seen) and min(seen) >= int(route["metadata"].get("generation") or 0)


def deadline_s(documents: Iterable[Document]) -> float:
    deadlines = [each["spec"].get("progressDeadlineSeconds") for each in documents if each["kind"] == "Deployment"]
    return float(max([DEADLINE_S, *(limit for limit in deadlines if limit)]))
