"""Requests are led to what answers, and away from what goes: the order in which a release takes hold.

A route may name a side of a canary from the moment when it has a ready pod, and a side may go once the route no longer
names it. Knative keeps this order itself; for Deployments behind a Gateway it is kept here.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pilotlight.errors import TimedOut
from pilotlight.targets.kubernetes import applying, kinds
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.target import Key

Json = Any
Document = Mapping[str, Json]
SLICE: Final = ("discovery.k8s.io/v1", "EndpointSlice")
LOOK_S: Final = 0.5
ROUTED_S: Final = 20.0  # for the Gateway's controller to take a route up; it does so in a moment, or says why not
SETTLE_S: Final = 2.0  # from there to the last of its proxies
DEADLINE_S: Final = 600.0


class Move:
    """One release on its way into the cluster. `failed` says why a side will not answer; empty while it may."""

    def __init__(
        self, cluster: Cluster, key: Key, failed: Callable[[], str], *, force: bool,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._cluster, self._key, self._failed, self._force = cluster, key, failed, force
        self._clock, self._sleep = clock, sleep

    def make(self, documents: Sequence[Document], there: Iterable[Document]) -> None:
        held = held_routes(documents, there)
        applying.applied(self._cluster, [each for each in documents if each not in held], force=self._force)
        for route in held:
            self._await_sides(route, documents)
        applying.applied(self._cluster, held, force=self._force)
        extra = applying.superfluous(self._cluster, self._key, documents)
        if any(each["kind"] in ("Deployment", "Service") for each in extra):
            self._await_routes(documents)
        applying.removed(self._cluster, extra)

    def _await_sides(self, route: Document, documents: Sequence[Document]) -> None:
        until = self._clock() + deadline_s(documents)
        waiting = backends(route)
        while waiting := [name for name in waiting if not self._answers(name)]:
            why = self._failed()
            if why or self._clock() >= until:
                message = f"{', '.join(waiting)} does not answer, so that no requests are sent there"
                raise TimedOut(f"{message}: {why}" if why else message, f"platformctl canary abort {self._key[1]}")
            self._sleep(LOOK_S)

    def _answers(self, service: str) -> bool:
        found = self._cluster.list(*SLICE, self._key[0], f"kubernetes.io/service-name={service}")
        return any(kinds.takes_requests(point) for each in found for point in each.get("endpoints") or ())

    def _await_routes(self, documents: Sequence[Document]) -> None:
        """A Gateway that never says so is no reason to keep what nobody wants."""
        names = [str(each["metadata"]["name"]) for each in documents if each["kind"] == "HTTPRoute"]
        until = self._clock() + ROUTED_S
        while self._clock() < until:
            found = [self._cluster.get(*kinds.HTTP_ROUTE, self._key[0], name) for name in names]
            if all(each is None or taken_up(each) for each in found):
                break
            self._sleep(LOOK_S)
        if names:
            self._sleep(SETTLE_S)


def held_routes(documents: Iterable[Document], there: Iterable[Document]) -> list[Document]:
    """Routes that lead somewhere new: their sides must answer first. A first route waits for nobody."""
    known = {each["metadata"]["name"]: set(backends(each)) for each in there if each["kind"] == "HTTPRoute"}
    routes = [each for each in documents if each["kind"] == "HTTPRoute" and each["metadata"]["name"] in known]
    return [each for each in routes if set(backends(each)) - known[each["metadata"]["name"]]]


def backends(route: Document) -> list[str]:
    """Services of its own namespace that get requests by it."""
    found = [each for rule in route["spec"].get("rules") or () for each in rule.get("backendRefs") or ()]
    return [str(each["name"]) for each in found if each.get("weight", 1) and not each.get("namespace")]


def taken_up(route: Document) -> bool:
    """Whether every parent has judged it as it is now."""
    parents = (route.get("status") or {}).get("parents") or ()
    seen = [int(each.get("observedGeneration") or 0) for parent in parents for each in parent.get("conditions") or ()]
    return bool(seen) and min(seen) >= int(route["metadata"].get("generation") or 0)


def deadline_s(documents: Iterable[Document]) -> float:
    found = [each["spec"].get("progressDeadlineSeconds") for each in documents if each["kind"] == "Deployment"]
    return float(max([DEADLINE_S, *(limit for limit in found if limit)]))
