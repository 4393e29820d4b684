"""The single autoscaler that owns a workload: which one, within which limits, and why. Follows mode.py in plan()."""

import re
from typing import Final, Literal

from pilotlight.plan import annotations, keda
from pilotlight.plan.hpa import hpa
from pilotlight.plan.kpa import knative
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Capabilities, Requirement, Scaling, Trigger
from pilotlight.plan.subject import Subject
from pilotlight.plan.trigger_choice import choose_triggers, config_of

Owner = Literal["hpa", "keda", "external", "none"]
OWNERS: Final = ("hpa", "keda", "external", "none")
OME_MAXIMUM: Final = 3
OME_ROUTER_MAXIMUM: Final = 2


def decide_scaling(subject: Subject, least: int, ledger: Ledger) -> Scaling:
    """`least`: replicas that something else demands, such as both sides of a canary."""
    minimum, maximum = limits(subject, least, ledger)
    if subject.mode == "virtual":
        return Scaling("none", 0, 0)
    if subject.serverless:
        scaling = knative(subject, minimum, maximum, ledger)
        ledger.decide(subject.component.role, "autoscaler", scaling.scaler, "serverless is scaled by Knative")
        return scaling
    if subject.on_ray:
        return _on_ray(subject, max(1, minimum), ledger)
    owner, reason = _owner(subject, minimum, ledger)
    ledger.decide(subject.component.role, "autoscaler", owner, reason)
    if owner == "keda":
        return _keda(subject, minimum, maximum, ledger)
    if owner == "hpa":
        return hpa(subject, minimum, maximum, ledger)
    return Scaling("none", minimum, maximum)


def _on_ray(subject: Subject, groups: int, ledger: Ledger) -> Scaling:
    """Each group is a RayCluster of its own, so there is no count that an autoscaler could change."""
    reason = "each group is a RayCluster of its own, and nothing counts those"
    ledger.decide(subject.component.role, "autoscaler", "none", reason)
    most = subject.component.max_replicas
    if most is not None and most > groups:
        ledger.warn("PL360", subject.path("maxReplicas"), f"has no effect on Ray: {reason}; {groups} run")
    wish = _keda_wish(subject, 1)
    if wish:
        ledger.warn("PL360", subject.path(), f"{wish} has no effect on Ray: {reason}; use MultiNode to scale")
    return Scaling("none", groups, groups)


def replicas_of(subject: Subject, scaling: Scaling) -> int | None:
    """A fixed count only where nobody scales: with an autoscaler each apply would undo its last decision."""
    external = subject.annotation(*annotations.AUTOSCALER_CLASS) == "external"
    return scaling.min_replicas if scaling.scaler == "none" and not external else None


def limits(subject: Subject, least: int, ledger: Ledger) -> tuple[int, int]:
    """Minimum and maximum with both projects' defaults: min 1; OME's max is 3, a router's 2; KServe's is open."""
    component = subject.component
    asked = 1 if component.min_replicas is None else component.min_replicas
    minimum = max(least, asked)
    if least > asked:
        ledger.decide(component.role, "min replicas", least, "both sides of a canary stay up")
    if component.role == "decoder" and minimum == 0:
        ledger.warn("PL311", subject.path("minReplicas"), "a decoder gets no requests that could wake it; 1 is kept")
        minimum = 1
    maximum = component.max_replicas or _default_maximum(subject)
    if component.max_replicas and component.min_replicas and component.max_replicas < component.min_replicas:
        message = f"maxReplicas = {component.max_replicas} is below minReplicas = {component.min_replicas}; raise it"
        ledger.error("PL310", subject.path("maxReplicas"), message)
    if subject.serverless and not maximum:
        return minimum, 0
    return minimum, max(minimum, maximum, 1)


def _default_maximum(subject: Subject) -> int:
    if subject.service.group == "kserve":
        return 0
    return OME_ROUTER_MAXIMUM if subject.component.role == "router" else OME_MAXIMUM


def _owner(subject: Subject, minimum: int, ledger: Ledger) -> tuple[Owner, str]:
    """An annotation, then a wish that only KEDA can fulfil, then an HPA."""
    key, value = annotations.of(subject.service, subject.component, *annotations.AUTOSCALER_CLASS)
    if value and value not in OWNERS:
        ledger.error("PL312", subject.annotation_path(key), f"{value}, must be one of {', '.join(OWNERS)}")
    wish = _keda_wish(subject, minimum)
    for owner in ("keda", "external", "none"):
        if value == owner:
            return owner, f"annotation {key} = {value}"
    if value == "hpa":
        _check_hpa(subject, key, wish, minimum, ledger)
        return "hpa", f"annotation {key} = hpa"
    if wish:
        return "keda", wish
    if subject.mode == "stateful":
        return "none", "replicas of a stateful component are not interchangeable"
    return "hpa", "nothing asks for KEDA"


def _keda_wish(subject: Subject, minimum: int) -> str:
    component, config = subject.component, config_of(subject)
    if config is not None and config.enabled is not False and (config.enabled or config.query or config.threshold):
        return "kedaConfig.enableKeda" if config.enabled else "kedaConfig is filled in"
    if subject.annotation(annotations.TRIGGERS):
        return f"annotation {annotations.TRIGGERS}"
    if any(metric.kind != "resource" for metric in component.metrics):
        return "autoScaling.metrics names more than cpu and memory"
    if component.scale_metric in ("concurrency", "rps"):
        return f"scaleMetric = {component.scale_metric}, which an HPA cannot see"
    return f"{component.role}.minReplicas = 0, which an HPA cannot reach" if minimum == 0 else ""


def _check_hpa(subject: Subject, key: str, wish: str, minimum: int, ledger: Ledger) -> None:
    if minimum == 0:
        message = f"{key} = hpa keeps at least one replica; set minReplicas to 1 or use keda"
        ledger.error("PL313", subject.path("minReplicas"), message)
    elif wish:
        ledger.error("PL313", subject.annotation_path(key), f"hpa cannot honour this: {wish}; use keda")


def _keda(subject: Subject, minimum: int, maximum: int, ledger: Ledger) -> Scaling:
    _check_keda(subject, subject.capabilities, ledger)
    triggers = choose_triggers(subject, minimum, ledger)
    for trigger in triggers:
        target = next((trigger.metadata[key] for key in _TARGETS if key in trigger.metadata), "")
        ledger.decide(
            subject.component.role, f"trigger {trigger.name}", f"{trigger.type} {target}".strip(), _shape(trigger)
        )
    modifiers = _modifiers(subject, triggers, minimum, ledger)
    return keda.scaled(subject, minimum, maximum, triggers, subject.component.behavior, modifiers)


_TARGETS: Final = ("threshold", "targetConcurrency", "value", "targetValue")


def _shape(trigger: Trigger) -> str:
    if trigger.type == "external-push":
        return "whoever holds the requests reports them, also at zero replicas"
    if trigger.type in ("cpu", "memory"):
        return "by the HPA's own metric"
    return (
        "a level: replicas × value / target" if trigger.metric_type == "Value" else "a total, divided by the replicas"
    )


def _check_keda(subject: Subject, capabilities: Capabilities, ledger: Ledger) -> None:
    path = subject.path()
    if not capabilities.keda:
        ledger.error("PL314", path, "is to be scaled by KEDA, which the target does not have; install it or use hpa")
    elif not keda.version_at_least(capabilities.keda):
        message = f"KEDA {capabilities.keda} has no fallback for Value metrics; upgrade it to 2.18 or later"
        ledger.error("PL314", path, message)
    ledger.need(Requirement("version", "KEDA >= 2.18", f"{subject.component.role}: fallback on Value metrics"))


def _modifiers(subject: Subject, triggers: list[Trigger], minimum: int, ledger: Ledger) -> dict[str, str]:
    """One composite metric instead of the largest wish. KEDA wants a whole target where there is a fallback."""
    formula = subject.annotation(annotations.FORMULA)
    if not formula:
        return {}
    path = subject.annotation_path(annotations.FORMULA)
    target = subject.annotation(annotations.FORMULA_TARGET) or "1"
    known = {trigger.name for trigger in triggers}
    used = set(re.findall(r"[A-Za-z_]\w*", formula)) & known
    if not used:
        ledger.error("PL334", path, f"names none of the triggers {', '.join(sorted(known))}")
    if minimum == 0 and keda.PUSH not in used:
        message = (
            f"leaves out {keda.PUSH}, so that nothing could wake the service from 0; use it or set minReplicas to 1"
        )
        ledger.error("PL335", path, message)
    if not target.isdigit() or int(target) < 1:
        path = subject.annotation_path(annotations.FORMULA_TARGET)
        ledger.error("PL336", path, f"{target}, must be a whole number from 1: KEDA drops the fallback otherwise")
    level = any(trigger.metric_type == "Value" for trigger in triggers)
    return {"formula": formula, "target": target, "metricType": "Value" if level else "AverageValue"}
