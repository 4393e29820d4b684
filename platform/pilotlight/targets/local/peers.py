"""How a component finds another one of its service without a cluster's names: through the gateway.

`iris-predictor.demo` becomes `127.0.0.1:8090/demo/iris-predictor@…`, with a key that only the platform's own processes
are told: by variables, since every user of the machine can read the arguments of a process. Manifests name a component
by its Service, in any of the forms that a cluster resolves, on the port for HTTP.
Pure; done when a replica is started, since nobody knows the gateway's port before.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight.errors import PlatformError
from pilotlight.targets.local.model import Container, ServiceSpec
from pilotlight.targets.local.scaling.model import Hpa, Kpa, Scaling

KEY_DIGITS: Final = 32
ENV_PREDICTOR: Final = f"{ENV_SETTINGS_PREFIX}PREDICTOR_HOST"
_PREDICTOR_FLAGS: Final = ("--predictor_host", "--predictor-host")  # KServe's way to write it, and ours
# A router looks at its endpoints twice a second; an engine that shall end takes requests until it has looked.
ROUTED_DRAIN: Final = {f"{ENV_SETTINGS_PREFIX}DRAIN_DELAY": "1"}


@dataclass(frozen=True, slots=True)
class Peers:
    """`secret` is the home's own: keys stay the same over restarts, since replicas live through them."""

    gateway_url: str
    secret: str

    def key(self, namespace: str, workload: str) -> str:
        """What a component must show to be let through to another one."""
        named = f"{namespace}/{workload}".encode()
        return hmac.new(self.secret.encode(), named, hashlib.sha256).hexdigest()[:KEY_DIGITS]

    def located(self, container: Container, service: ServiceSpec) -> Container:
        """The container with its peers' addresses replaced; that of its predictor goes from arguments to a variable."""
        inner = _inner(service)
        address = _addresses([service.name, *(workload.name for workload in service.workloads)], service.namespace)
        gateway = f"{self.gateway_url.partition('://')[2]}/{service.namespace}"

        def way(found: re.Match[str]) -> str:
            """What is asked from outside is reached by the service's own name."""
            name = found[1]
            return (
                f"{gateway}/{name}@{self.key(service.namespace, name)}"
                if name in inner
                else f"{gateway}/{service.name}"
            )

        args, predictor = _without_predictor(container.args, address)
        given = {**container.env, **({ENV_PREDICTOR: predictor} if predictor else {})}
        keyed = _addresses(inner, service.namespace)
        open_args = tuple(part if keyed.search(part) else address.sub(way, part) for part in args)
        return replace(container, args=open_args, env={name: address.sub(way, value) for name, value in given.items()})


def _without_predictor(args: Sequence[str], address: re.Pattern[str]) -> tuple[list[str], str]:
    """The other arguments, and the predictor's address where they name a component; the last one holds."""
    kept, found = list[str](), ""
    for words in _options(args):
        flag, _, value = "=".join(words).partition("=")
        if flag in _PREDICTOR_FLAGS and address.search(value):
            found = value
        else:
            kept += words
    return kept, found


def _options(args: Sequence[str]) -> Iterator[list[str]]:
    """Each argument, the predictor's flag together with its value."""
    words = iter(args)
    for word in words:
        value = next(words, None) if word in _PREDICTOR_FLAGS else None
        yield [word] if value is None else [word, value]


def drain_of(service: ServiceSpec, role: str) -> dict[str, str]:
    """How a component behind a router ends: that one does not hear at once that it shall not be asked any more."""
    return dict(ROUTED_DRAIN) if _routed(service) and role != "router" else {}


def check(service: ServiceSpec) -> None:
    """Raises PlatformError for components that cannot find each other here, or that would be scaled blindly."""
    _check_arguments(service)
    _check_scaling(service)


def _check_arguments(service: ServiceSpec) -> None:
    """The way to an inner component has a key in it, which must not stand where `ps` shows it."""
    inner = _addresses(_inner(service), service.namespace)
    for workload in service.workloads:
        args, _ = _without_predictor(workload.revision.container.args, inner)
        shown = next((part for part in args if inner.search(part)), "")
        if shown:
            told = f"{workload.name}: argument {shown} names a component that only its service may ask"
            raise PlatformError(f"{told}; tell it by a variable, which other users of this machine cannot read")


def _check_scaling(service: ServiceSpec) -> None:
    """A router asks replicas themselves: the gateway would see none of it, and take the component for idle."""
    blind = [work.name for work in service.workloads if work.role != "router" and _by_requests(work.revision.scaling)]
    if blind and _routed(service):
        told = f"{', '.join(blind)}: is scaled by requests, and a router sends them past the gateway that counts them"
        raise PlatformError(f"{told}; give it minReplicas: 1 and a metric of its own, or leave the router out")


def _inner(service: ServiceSpec) -> set[str]:
    """Workloads that only other components ask."""
    return {workload.name for workload in service.workloads} - dict(service.entry).keys()


def _routed(service: ServiceSpec) -> bool:
    return any(workload.role == "router" for workload in service.workloads)


def _by_requests(scaling: Scaling) -> bool:
    if isinstance(scaling, Hpa):
        return scaling.min_replicas == 0 or any(metric.source == "requests" for metric in scaling.metrics)
    return isinstance(scaling, Kpa)


def _addresses(names: Iterable[str], namespace: str) -> re.Pattern[str]:
    """Only as a whole: neither within a longer name nor on another port than that of HTTP."""
    word = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or "(?!)"
    domain = rf"{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?"
    return re.compile(rf"(?<![\w.-])({word})\.{domain}(?::80)?(?![\w.:-])")
