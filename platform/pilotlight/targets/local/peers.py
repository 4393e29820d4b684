"""How a component finds another one of its service without a cluster's names: through the gateway.

`iris-predictor.demo` becomes `127.0.0.1:8090/demo/iris-predictor`. Manifests name a component by its Service, in any of
the forms that a cluster resolves, on the port for HTTP. Pure; done when a replica is started, since nobody knows the
gateway's port before.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from pilotlight.targets.local.model import Container, ServiceSpec


def located(container: Container, service: ServiceSpec, gateway_url: str) -> Container:
    """The container with its peers' addresses in arguments and variables replaced."""
    names = [service.name, *(workload.name for workload in service.workloads)]
    address, gateway = _addresses(names, service.namespace), gateway_url.partition("://")[2]

    def here(text: str) -> str:
        return address.sub(lambda found: f"{gateway}/{service.namespace}/{found[1]}", text)

    env = {name: here(value) for name, value in container.env.items()}
    return replace(container, args=tuple(here(part) for part in container.args), env=env)


def _addresses(names: Iterable[str], namespace: str) -> re.Pattern[str]:
    """Only as a whole: neither within a longer name nor on another port than that of HTTP."""
    word = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    domain = rf"{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?"
    return re.compile(rf"(?<![\w.-])({word})\.{domain}(?::80)?(?![\w.:-])")
