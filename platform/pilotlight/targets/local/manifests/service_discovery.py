"""Addresses of a service's components without cluster DNS: through the gateway, or for routers from endpoint files.

`iris-predictor.demo` becomes `127.0.0.1:8090/demo/iris-predictor@…`, with a key that only the platform's own processes
get: by variables, since every user of the machine can read a process's arguments. Applied when a replica starts.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import json

from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight.errors import PlatformError
from pilotlight.gateway.routing_table import Replica, Route
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, ServiceSpec
from pilotlight.targets.local.scaling.types import Hpa, Kpa, Scaling
from pilotlight.wire.shared_files import replace_file

KEY_DIGITS: Final = 32
ENV_PREDICTOR: Final = f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST"
_PREDICTOR_FLAGS: Final = ("--predictor_host", "--predictor-host")  # KServe's spelling, and the platform's
# A router reads its endpoints twice a second; a terminating engine serves until it has read them.
ROUTED_DRAIN: Final = {f"{ENV_SETTINGS_PREFIX}DRAIN_DELAY": "1"}
WorkloadKey = tuple[str, str]  # namespace and workload
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComponentAddresses:
    """`secret` is the home's: keys survive restarts of the control process, as replicas do."""

    gateway_url: str
    secret: str

    def key(self, namespace: str, workload: str) -> str:
        """Return the key that a component must send to reach another one."""
        name = f"{namespace}/{workload}".encode()
        return hmac.new(self.secret.encode(), name, hashlib.sha256).hexdigest()[:KEY_DIGITS]

    def resolve(self, container: ContainerSpec, service: ServiceSpec) -> ContainerSpec:
        """Replace the components' addresses in a container; the predictor's moves from the arguments to a variable."""
        internal = _internal(service)
        address = _addresses([service.name, *(workload.name for workload in service.workloads)], service.namespace)
        gateway = f"{self.gateway_url.partition('://')[2]}/{service.namespace}"

        def address_of(match: re.Match[str]) -> str:
            name = match[1]
            if name in internal:
                return f"{gateway}/{name}@{self.key(service.namespace, name)}"
            return f"{gateway}/{service.name}"  # an entry workload is reached by the service's own name

        args, predictor = _without_predictor(container.args, address)
        env = {**container.env, **({ENV_PREDICTOR: predictor} if predictor else {})}
        keyed = _addresses(internal, service.namespace)
        open_args = tuple(part if keyed.search(part) else address.sub(address_of, part) for part in args)
        env = {name: address.sub(address_of, value) for name, value in env.items()}
        if env.get(ENV_PREDICTOR) == (entry := f"{gateway}/{service.name}"):
            # An explainer calls the entry of its own service, without the token of its client.
            env[ENV_PREDICTOR] = f"{entry}@{self.key(service.namespace, service.name)}"
        return replace(container, args=open_args, env=env)


def _without_predictor(args: Sequence[str], address: re.Pattern[str]) -> tuple[list[str], str]:
    """Return the other arguments, and the predictor's address if it names a component; the last one wins."""
    rest, predictor = list[str](), ""
    remaining = iter(args)
    for word in remaining:
        follows = next(remaining, None) if word in _PREDICTOR_FLAGS else None
        words = [word] if follows is None else [word, follows]
        flag, _, value = "=".join(words).partition("=")
        if flag in _PREDICTOR_FLAGS and address.search(value):
            predictor = value
        else:
            rest += words
    return rest, predictor


def drain_env(service: ServiceSpec, role: str) -> dict[str, str]:
    """Return the drain delay of a component behind a router, which notices its termination late."""
    return dict(ROUTED_DRAIN) if _routed(service) and role != "router" else {}


def check(service: ServiceSpec) -> None:
    """Raise PlatformError for components that cannot reach each other, or whose requests the gateway cannot count."""
    # The address of an internal component contains a key, which `ps` would show.
    internal = _addresses(_internal(service), service.namespace)
    for workload in service.workloads:
        args, _ = _without_predictor(workload.revision.container.args, internal)
        if shown := next((part for part in args if internal.search(part)), ""):
            problem = f"{workload.name}: argument {shown} contains the address of an internal component"
            raise PlatformError(f"{problem}; pass it in a variable, which other users of this machine cannot read")
    # A router calls replicas directly: the gateway would count no requests and scale the component to zero.
    blind = [work.name for work in service.workloads if work.role != "router" and _by_requests(work.revision.scaling)]
    if blind and _routed(service):
        problem = "is scaled by requests, but its router bypasses the gateway that counts them"
        fix = "set minReplicas: 1 and its own metric, or remove the router"
        raise PlatformError(f"{', '.join(blind)}: {problem}; {fix}")


def _internal(service: ServiceSpec) -> set[str]:
    return {workload.name for workload in service.workloads} - dict(service.entry).keys()


def _routed(service: ServiceSpec) -> bool:
    return any(workload.role == "router" for workload in service.workloads)


def _by_requests(scaling: Scaling) -> bool:
    if isinstance(scaling, Hpa):
        return scaling.min_replicas == 0 or any(metric.source == "requests" for metric in scaling.metrics)
    return isinstance(scaling, Kpa)


def _addresses(names: Iterable[str], namespace: str) -> re.Pattern[str]:
    """Return a pattern of whole addresses: not within a longer name, and only on the HTTP port."""
    word = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or "(?!)"
    domain = rf"{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?"
    return re.compile(rf"(?<![\w.-])({word})\.{domain}(?::80)?(?![\w.:-])")


def endpoints_of(routes: Iterable[Route]) -> dict[WorkloadKey, tuple[Replica, ...]]:
    """Return the replicas of workloads that only other components call."""
    return {
        (route.namespace, route.name): tuple(replica for backend in route.backends for replica in backend.replicas)
        for route in routes
        if route.internal
    }


class EndpointFiles:
    """Endpoints of internal workloads: `<folder>/<namespace>/<workload>.json`, a list of the gateway's `Replica`.

    Files are replaced atomically, and only when changed. The first update removes those of an earlier control process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[WorkloadKey, tuple[Replica, ...]] | None = None

    def update(self, routes: Iterable[Route]) -> None:
        """Write the endpoints of a routing table; a failed write is logged and retried with the next table."""
        endpoints = endpoints_of(routes)
        try:
            known = self._written
            if known is None:  # the files present, with an impossible content so that each is rewritten or removed
                files = self._folder.glob("*/*.json")
                known = {(file.parent.name, file.stem): (Replica("", 0),) for file in files}
            self._write(endpoints, known)
            self._written = endpoints
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder, error)
            self._written = None

    def _write(
        self, wanted: Mapping[WorkloadKey, tuple[Replica, ...]], known: Mapping[WorkloadKey, tuple[Replica, ...]]
    ) -> None:  # fmt: skip
        for key, replicas in wanted.items():
            if known.get(key) != replicas:
                file = self._file(key)
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(file, json.encode(replicas))
        for key in known.keys() - wanted.keys():
            self._file(key).unlink(missing_ok=True)

    def _file(self, key: WorkloadKey) -> Path:
        namespace, workload = key
        return self._folder / namespace / f"{workload}.json"
