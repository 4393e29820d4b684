"""Fields of a component that have no effect in some modes: plan() warns about them with PL360.

field_support.yaml has them. The errors of refused fields, and the warnings about what Knative refuses (PL359), are
raised by other modules of plan().
"""

from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct, yaml

from pilotlight.k8s.autoscaling_annotations import KNATIVE_AUTOSCALING
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.support.request_logs import check_request_log
from pilotlight.plan.types import DecisionLog, Mode


class FieldRow(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of field_support.yaml."""

    field: str
    attribute: str
    why: dict[Mode, str]
    kserve: str = ""
    kinds: tuple[str, ...] = ()

    def is_set(self, context: PlanContext) -> bool:
        if self.kinds:
            return any(metric.kind in self.kinds for metric in context.component.metrics)
        value: Any = context.component
        for name in self.attribute.split("."):
            value = getattr(value, name, None)
        return value is not False and value not in (None, (), {}, "")


class FieldSupport(Struct, frozen=True):
    reasons: dict[str, str]
    fields: tuple[FieldRow, ...]


@cache
def support() -> FieldSupport:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=FieldSupport)


def check_fields(context: PlanContext, log: DecisionLog) -> None:
    """Warn about every field that is set and has no effect in the component's mode."""
    if context.mode == "virtual":
        return
    for row in support().fields:
        why = row.why.get(context.mode)
        if why and row.is_set(context):
            own = row.kserve if context.service.group == "kserve" and row.kserve else row.field
            log.warn("PL360", context.path(own), f"has no effect in {context.mode} mode: {why}")
    config = context.service.keda
    if context.serverless and context.serves_model and config is not None and config.enabled is not False:
        log.warn("PL360", "spec.kedaConfig", f"has no effect in serverless mode: {support().reasons['knative']}")
    _check_annotations(context, log)
    _check_foreign(context, log)
    check_request_log(context, log)


def _check_annotations(context: PlanContext, log: DecisionLog) -> None:
    """Warn about annotations of another autoscaler."""
    for_deployments = (
        *document_annotations.AUTOSCALER_CLASS,
        document_annotations.TRIGGERS,
        document_annotations.SCHEDULE,
        document_annotations.FORMULA,
        document_annotations.WAKE_BY,
    )
    for key in {**context.service.annotations, **context.component.annotations}:
        if context.serverless and key in for_deployments:
            message = f"has no effect in serverless mode: {support().reasons['knative']}"
            log.warn("PL360", context.annotation_path(key), message)
        elif not context.serverless and key.startswith(KNATIVE_AUTOSCALING):
            message = f"has no effect in {context.mode} mode: Knative does not scale it"
            log.warn("PL360", context.annotation_path(key), message)


def _check_foreign(context: PlanContext, log: DecisionLog) -> None:
    """Report features that only our predictor has, for other servers."""
    component = context.component
    if component.model is not None and component.model.confidential.get("enabled"):
        log.error("PL364", context.path("model.confidential"), "decryption is not supported; use an unencrypted model")
    if context.choice.is_pilotlight:
        return
    if component.batcher is not None:
        log.warn("PL361", context.path("batcher"), "third-party servers must do their own batching")
    if component.container_concurrency and not context.serverless:
        message = "third-party servers have no request limit in this mode; use the server's own setting"
        log.warn("PL361", context.path("containerConcurrency"), message)
