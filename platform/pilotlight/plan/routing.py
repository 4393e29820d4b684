"""Router component: our gateway in router mode. Validates its settings and passes them as variables."""

import re
from typing import Any, Final

from pilotlight import names
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext

Json = Any
STRATEGIES: Final = ("round_robin", "least_loaded", "cache_aware", "prefill_decode")
ENV_PREFIX: Final = "PILOTLIGHT_ROUTER_"
COMMAND: Final = ("python", "-m", "pilotlight.gateway", "route")
KNOWN: Final = ("routing_strategy", "health_check_interval")
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


def router_environment(context: PlanContext, log: DecisionLog) -> list[dict[str, str]]:
    """Return the router's variables; the default strategy of a disaggregated service is prefill_decode."""
    service, config = context.service, context.component.config
    disaggregated = "decoder" in service.components
    default = "prefill_decode" if disaggregated else "least_loaded"
    strategy = config.get("routing_strategy", default)
    _check(context, strategy, disaggregated, log)
    reason = (
        "router.config" if "routing_strategy" in config else "engine and decoder" if disaggregated else "the default"
    )
    log.decide("router", "strategy", strategy, reason)
    values = {
        "STRATEGY": strategy,
        "HEALTH_CHECK_INTERVAL_S": f"{_interval(context, log):g}",
        "ENGINE": names.workload(service.name, "engine"),
        "NAMESPACE": service.namespace,
    }
    if disaggregated:
        values["DECODER"] = names.workload(service.name, "decoder")
    return [{"name": f"{ENV_PREFIX}{name}", "value": value} for name, value in values.items()]


def _check(context: PlanContext, strategy: str, disaggregated: bool, log: DecisionLog) -> None:
    path = context.path("config.routing_strategy")
    if strategy not in STRATEGIES:
        log.error("PL346", path, f"{strategy}, must be one of {', '.join(STRATEGIES)}")
    elif strategy == "prefill_decode" and not disaggregated:
        log.error("PL346", path, "prefill_decode needs a decoder beside the engine; add one or use cache_aware")
    for key in context.component.config:
        if key not in KNOWN:
            log.error("PL347", context.path(f"config.{key}"), f"is no setting of the router; known: {', '.join(KNOWN)}")


def _interval(context: PlanContext, log: DecisionLog) -> float:
    written = context.component.config.get("health_check_interval", "10s")
    matched = _INTERVAL.fullmatch(written)
    seconds = float(matched[1]) * _UNITS[matched[2]] if matched else 0.0
    if not 0.1 <= seconds <= 3600:
        path = context.path("config.health_check_interval")
        log.error("PL348", path, f"{written}, must be a duration from 100ms to 60m such as 30s")
    return seconds
