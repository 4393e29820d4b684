"""The router component: our gateway in router mode. Its settings are checked here and told to it by variables."""

import re
from typing import Any, Final

from pilotlight import names
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject

Json = Any
STRATEGIES: Final = ("round_robin", "least_loaded", "cache_aware", "prefill_decode")
ENV_PREFIX: Final = "PILOTLIGHT_ROUTER_"
COMMAND: Final = ("python", "-m", "pilotlight.gateway", "route")
KNOWN: Final = ("routing_strategy", "health_check_interval")
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


def router_environment(subject: Subject, ledger: Ledger) -> list[dict[str, str]]:
    """A disaggregated service is routed by phase unless it says otherwise."""
    service, config = subject.service, subject.component.config
    disaggregated = "decoder" in service.components
    default = "prefill_decode" if disaggregated else "least_loaded"
    strategy = config.get("routing_strategy", default)
    _check(subject, strategy, disaggregated, ledger)
    reason = (
        "router.config" if "routing_strategy" in config else "engine and decoder" if disaggregated else "the default"
    )
    ledger.decide("router", "strategy", strategy, reason)
    values = {
        "STRATEGY": strategy,
        "HEALTH_CHECK_INTERVAL_S": f"{_interval(subject, ledger):g}",
        "ENGINE": names.workload(service.name, "engine"),
        "NAMESPACE": service.namespace,
    }
    if disaggregated:
        values["DECODER"] = names.workload(service.name, "decoder")
    return [{"name": f"{ENV_PREFIX}{name}", "value": value} for name, value in values.items()]


def _check(subject: Subject, strategy: str, disaggregated: bool, ledger: Ledger) -> None:
    path = subject.path("config.routing_strategy")
    if strategy not in STRATEGIES:
        ledger.error("PL346", path, f"{strategy}, must be one of {', '.join(STRATEGIES)}")
    elif strategy == "prefill_decode" and not disaggregated:
        ledger.error("PL346", path, "prefill_decode needs a decoder beside the engine; add one or use cache_aware")
    for key in subject.component.config:
        if key not in KNOWN:
            ledger.error(
                "PL347", subject.path(f"config.{key}"), f"is no setting of the router; known: {', '.join(KNOWN)}"
            )


def _interval(subject: Subject, ledger: Ledger) -> float:
    written = subject.component.config.get("health_check_interval", "10s")
    matched = _INTERVAL.fullmatch(written)
    seconds = float(matched[1]) * _UNITS[matched[2]] if matched else 0.0
    if not 0.1 <= seconds <= 3600:
        path = subject.path("config.health_check_interval")
        ledger.error("PL348", path, f"{written}, must be a duration from 100ms to 60m such as 30s")
    return seconds
