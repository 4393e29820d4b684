"""Choice of the activator: the proxy that a service's request trigger reads must receive its requests."""

from collections.abc import Sequence
from typing import Any, Final

from pilotlight.plan.model import Activator, Capabilities, Trigger, Workload
from pilotlight.plan.trigger_choice import concurrency_target
from pilotlight.spec.model import Service

Json = Any
GATEWAY_PORT: Final = 8090
INTERCEPTOR: Final = ("keda-add-ons-http-interceptor-proxy", 8080)


def activator_of(workloads: Sequence[Workload], service: Service, capabilities: Capabilities) -> Activator | None:
    """Return the activator of a service; None if no workload has a request trigger."""
    for workload in workloads:
        for trigger in workload.scaling.triggers:
            if trigger.type == "external-push":
                target = concurrency_target(service.components[workload.role])
                return _activator(workload, trigger, target, capabilities)
    return None


def _activator(workload: Workload, trigger: Trigger, target: int, capabilities: Capabilities) -> Activator:
    if "interceptorRoute" not in trigger.metadata:
        name, namespace = _address(capabilities.gateway_scaler)
        return Activator("gateway", name, namespace, GATEWAY_PORT)
    _, namespace = _address(capabilities.http_scaler)
    start, answer = workload.progress_deadline_seconds, workload.timeout_seconds or 0
    route: dict[str, Json] = {
        "scalingMetric": {"concurrency": {"targetValue": target}},
        # The add-on's request timeout includes the wait for readiness, so a cold start needs both.
        "timeouts": {"readiness": f"{start}s", "request": f"{start + answer}s", "responseHeader": f"{start + answer}s"},
    }
    return Activator("interceptor", INTERCEPTOR[0], namespace, INTERCEPTOR[1], route)


def _address(address: str) -> tuple[str, str]:
    """Split `name.namespace.svc:9090` into name and namespace."""
    name, _, rest = address.partition(":")[0].partition(".")
    return name, rest.partition(".")[0]
