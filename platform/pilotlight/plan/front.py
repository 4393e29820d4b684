"""Who stands in front of a service that may be at zero: whoever its request triggers ask, must see its requests."""

from collections.abc import Sequence
from typing import Any, Final

from pilotlight.plan.model import Capabilities, Front, Trigger, Workload
from pilotlight.plan.trigger_choice import concurrency_target
from pilotlight.spec.model import Service

Json = Any
GATEWAY_PORT: Final = 8090
INTERCEPTOR: Final = ("keda-add-ons-http-interceptor-proxy", 8080)


def front_of(workloads: Sequence[Workload], service: Service, capabilities: Capabilities) -> Front | None:
    """None where no workload is scaled by requests that somebody else counts."""
    for workload in workloads:
        for trigger in workload.scaling.triggers:
            if trigger.type == "external-push":
                target = concurrency_target(service.components[workload.role])
                return _front(workload, trigger, target, capabilities)
    return None


def _front(workload: Workload, trigger: Trigger, target: int, capabilities: Capabilities) -> Front:
    if "interceptorRoute" not in trigger.metadata:
        name, namespace = _address(capabilities.gateway_scaler)
        return Front("gateway", name, namespace, GATEWAY_PORT)
    _, namespace = _address(capabilities.http_scaler)
    start, answer = workload.progress_deadline_seconds, workload.timeout_seconds or 0
    route: dict[str, Json] = {
        "scalingMetric": {"concurrency": {"targetValue": target}},
        # The add-on counts the request's time from its arrival, so the first one after an idle time needs both.
        "timeouts": {"readiness": f"{start}s", "request": f"{start + answer}s", "responseHeader": f"{start + answer}s"},
    }
    return Front("interceptor", INTERCEPTOR[0], namespace, INTERCEPTOR[1], route)


def _address(address: str) -> tuple[str, str]:
    """`name.namespace.svc:9090` as name and namespace."""
    name, _, rest = address.partition(":")[0].partition(".")
    return name, rest.partition(".")[0]
