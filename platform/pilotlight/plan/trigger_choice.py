"""What a service shall be scaled by under KEDA: read from kedaConfig, autoScaling, scaleMetric and annotations.

Each source gives asks or plain triggers; plan/keda.py turns them into triggers that are safe. Called by scaling.py.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from pilotlight.plan import annotations, keda, queries
from pilotlight.plan.keda import Ask
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Trigger
from pilotlight.plan.queries import Kind
from pilotlight.plan.subject import Subject
from pilotlight.spec.model import Component, KedaConfig, ScalingMetric

OPERATORS: Final = ("GreaterThanOrEqual", "LessThanOrEqual")
DEFAULT_CONCURRENCY: Final = 10
DEFAULT_RPS: Final = 200  # Knative's default target
OME_THRESHOLD: Final = "10"
OTEL_SCALER: Final = "keda-otel-scaler.keda.svc:4318"
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def config_of(subject: Subject) -> KedaConfig | None:
    """The component's kedaConfig, field by field, over the service's, which is about the model and not its router."""
    own = subject.component.keda
    general = subject.service.keda if subject.serves_model else None
    if own is None or general is None:
        return _annotated(subject, own or general)
    return _annotated(
        subject,
        KedaConfig(
            enabled=own.enabled if own.enabled is not None else general.enabled,
            server_address=own.server_address or general.server_address,
            query=own.query or general.query,
            threshold=own.threshold or general.threshold,
            operator=own.operator or general.operator,
            authentication=own.authentication or general.authentication,
            auth_modes=own.auth_modes or general.auth_modes,
        ),
    )


def _annotated(subject: Subject, config: KedaConfig | None) -> KedaConfig | None:
    """OME lets annotations override what kedaConfig says."""
    written = {
        "query": subject.annotation(annotations.KEDA_QUERY),
        "threshold": subject.annotation(annotations.KEDA_THRESHOLD),
        "operator": subject.annotation(annotations.KEDA_OPERATOR),
        "server_address": subject.annotation(annotations.KEDA_ADDRESS),
    }
    found = {name: value for name, value in written.items() if value}
    return replace(config or KedaConfig(), **found) if found else config  # type: ignore[arg-type]


def config_path(subject: Subject, field: str) -> str:
    """Where a field of kedaConfig was written: on the component, or on the service."""
    on_component = subject.path(f"kedaConfig.{field}")
    return (
        on_component if on_component in subject.service.places or subject.component.keda else f"spec.kedaConfig.{field}"
    )


def choose_triggers(subject: Subject, min_replicas: int, ledger: Ledger) -> list[Trigger]:
    """All that was asked for, in the order of its sources; with a request trigger wherever the minimum is 0."""
    asks = [*_from_annotation(subject, ledger), *_from_config(subject, ledger), *_from_metrics(subject, ledger)]
    plain = _plain(subject)
    kinds = _simple_kinds(subject, bool(asks or plain))
    if min_replicas > 0 and subject.choice.ours:
        asks += [_own(subject, kind, target) for kind, target in kinds.items()]
        kinds = {}
    triggers = [*(keda.prometheus(subject, ask, min_replicas) for ask in asks), *plain]
    if kinds or min_replicas == 0:
        triggers = [*_push(subject, kinds, min_replicas, ledger), *triggers]
    return _uniquely_named(triggers)


def _simple_kinds(subject: Subject, others: bool) -> dict[Kind, str]:
    """scaleMetric and scaleTarget; without any wish at all, requests in flight per replica."""
    component = subject.component
    if component.scale_metric == "rps":
        return {"rps": str(component.scale_target or DEFAULT_RPS)}
    if component.scale_metric in ("cpu", "memory") or (others and component.scale_metric is None):
        return {}
    return {"concurrency": str(concurrency_target(component))}


def concurrency_target(component: Component) -> int:
    """Requests in flight that a replica shall have; a scaleTarget of another metric is none of them."""
    written = component.scale_target if component.scale_metric in (None, "concurrency") else None
    return written or component.container_concurrency or DEFAULT_CONCURRENCY


def _push(subject: Subject, kinds: dict[Kind, str], min_replicas: int, ledger: Ledger) -> Iterator[Trigger]:
    trigger = keda.push(subject, concurrency_target(subject.component))
    if trigger is None:
        _refuse_without_push(subject, min_replicas, ledger)
        return
    yield trigger
    if "rps" in kinds and subject.choice.ours:
        yield keda.prometheus(subject, _own(subject, "rps", kinds["rps"]), min_replicas)
    elif "rps" in kinds:
        ledger.warn(
            "PL325", subject.path("scaleMetric"),
            "rps of a foreign server is not exported; requests in flight at the gateway are used instead",
        )  # fmt: skip


def _refuse_without_push(subject: Subject, min_replicas: int, ledger: Ledger) -> None:
    named = subject.annotation(annotations.WAKE_BY)
    if named:
        there = " or ".join(keda.wakers(subject)) or "nothing: this target has neither gateway nor http-add-on"
        message = f"= {named}, which this target does not have; it must be {there}"
        ledger.error("PL320", subject.annotation_path(annotations.WAKE_BY), message)
    elif min_replicas == 0:
        ledger.error(
            "PL320", subject.path("minReplicas"),
            "nothing can wake it from 0: no replica runs, so no metric of it moves; install the Pilotlight gateway or "
            "the KEDA HTTP add-on, use serverless, or set minReplicas to 1",
        )  # fmt: skip
    else:
        ledger.error(
            "PL324", subject.path("kedaConfig"),
            "the runtime exports no metric that we know; give kedaConfig.customPromQuery and scalingThreshold",
        )  # fmt: skip


def _own(subject: Subject, kind: Kind, target: str) -> Ask:
    service = subject.service
    query = queries.own(kind, service.name, service.namespace)
    return Ask(kind.replace("-", "_"), query, target, queries.MEASURES[kind], _address(subject))


def _address(subject: Subject) -> str:
    config = config_of(subject)
    return (config.server_address if config else "") or subject.capabilities.prometheus


def _from_annotation(subject: Subject, ledger: Ledger) -> Iterator[Ask]:
    """`latency=0.5, queue-depth=4`: the kinds that neither project has a field for."""
    for part in filter(None, (part.strip() for part in subject.annotation(annotations.TRIGGERS).split(","))):
        kind, _, target = (text.strip() for text in part.partition("="))
        path = subject.annotation_path(annotations.TRIGGERS)
        if kind not in queries.MEASURES:
            ledger.error("PL326", path, f"{kind} is no trigger; use one of {', '.join(queries.MEASURES)}")
        elif not _positive(target):
            ledger.error("PL322", path, f"{kind} = {target or 'nothing'}, must be a number above 0")
        elif not subject.choice.ours:
            ledger.error("PL324", path, f"{kind} is a metric of our predictor, which this component does not run")
        else:
            yield _own(subject, cast(Kind, kind), target)


def _from_config(subject: Subject, ledger: Ledger) -> Iterator[Ask]:
    config = config_of(subject)
    if config is None or config.enabled is False or not (config.query or config.threshold):
        return
    threshold = _threshold(subject, config, ledger)
    inverted = _inverted(subject, config, ledger)
    query = config.query.replace("%s", subject.service.name) or queries.own(
        "latency", subject.service.name, subject.service.namespace
    )
    if not config.query and not subject.choice.ours:
        path = config_path(subject, "customPromQuery")
        ledger.error("PL324", path, "the runtime exports no latency that we know; say which query tells it")
    elif mistake := queries.mistake(query):
        ledger.error("PL321", config_path(subject, "customPromQuery"), f"the query {mistake}")
    elif threshold:
        yield Ask(
            "keda" if config.query else "latency", query, threshold, queries.measure(query), _address(subject),
            inverted, subject.choice.ours, config.authentication, config.auth_modes,
        )  # fmt: skip


def _threshold(subject: Subject, config: KedaConfig, ledger: Ledger) -> str:
    path = config_path(subject, "scalingThreshold")
    if not config.threshold:
        ledger.warn("PL323", path, f"is missing; OME's default of {OME_THRESHOLD} is used, in the unit of the query")
        return OME_THRESHOLD
    if not _positive(config.threshold):
        ledger.error("PL322", path, f"scalingThreshold = {config.threshold}, must be a number above 0")
        return ""
    return config.threshold


def _inverted(subject: Subject, config: KedaConfig, ledger: Ledger) -> bool:
    path = config_path(subject, "scalingOperator")
    if config.operator and config.operator not in OPERATORS:
        ledger.error("PL327", path, f"scalingOperator = {config.operator}, must be one of {', '.join(OPERATORS)}")
    if config.operator != "LessThanOrEqual":
        return False
    ledger.warn(
        "PL328", path,
        "is honoured as threshold / query with threshold 1: more replicas when the query falls below its threshold; "
        "OME itself ignores this field and scales up when the query rises",
    )  # fmt: skip
    return True


def _from_metrics(subject: Subject, ledger: Ledger) -> Iterator[Ask]:
    """KServe's autoScaling.metrics that Prometheus answers."""
    for index, metric in enumerate(subject.component.metrics):
        path = subject.path(f"autoScaling.metrics[{index}]")
        if metric.kind == "pod" and metric.name.startswith("pilotlight_"):
            metric = replace(metric, query=metric.query or _summed(subject, metric.name))
        elif metric.kind != "external" or metric.name != "prometheus":
            continue
        if mistake := queries.mistake(metric.query):
            ledger.error("PL321", f"{path}.{metric.kind}.metric.query", f"the query {mistake}")
        elif not _positive(metric.target):
            ledger.error(
                "PL322", f"{path}.{metric.kind}.target", f"{metric.target or 'nothing'}, must be a number above 0"
            )
        else:
            yield _external(subject, metric, index, path, ledger)


def _summed(subject: Subject, metric: str) -> str:
    return f"sum({metric}{{{queries.labels(subject.service.name, subject.service.namespace)}}})"


def _external(subject: Subject, metric: ScalingMetric, index: int, path: str, ledger: Ledger) -> Ask:
    measured = queries.measure(metric.query)
    if metric.target_type == "AverageValue" and queries.is_level(metric.query):
        ledger.warn(
            "PL329", f"{path}.{metric.kind}.target.type",
            "AverageValue divides a time or share by the replicas and forgets how many run; Value is used",
        )  # fmt: skip
    elif metric.target_type == "Value":
        measured = "level"
    elif metric.target_type == "AverageValue":
        measured = "total"
    address = metric.server_address or subject.capabilities.prometheus
    return Ask(
        f"metric_{index}", metric.query, metric.target, measured, address,
        counted=subject.choice.ours, authentication=metric.authentication, auth_modes=metric.auth_modes,
    )  # fmt: skip


def _plain(subject: Subject) -> list[Trigger]:
    """Triggers that need no guard: cpu, memory, graphite, a collector of pod metrics."""
    component = subject.component
    found: list[Trigger] = []
    if component.scale_metric in ("cpu", "memory"):
        utilization = component.scale_metric_type in (None, "Utilization")
        found.append(keda.resource(component.scale_metric, str(component.scale_target or 80), utilization))
    for index, metric in enumerate(component.metrics):
        if metric.kind == "resource":
            found.append(keda.resource(metric.name, metric.target, metric.target_type == "Utilization"))
        elif metric.name == "graphite":
            found.append(keda.graphite(f"metric_{index}", metric))
        elif metric.kind == "pod" and not metric.name.startswith("pilotlight_"):
            found.append(keda.pod_metric(subject, f"metric_{index}", metric, OTEL_SCALER))
    return found


def _positive(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text.strip())) and float(text) > 0


def _uniquely_named(triggers: list[Trigger]) -> list[Trigger]:
    """KEDA refuses two triggers of one name."""
    seen: dict[str, int] = {}
    named: list[Trigger] = []
    for trigger in triggers:
        count = seen[trigger.name] = seen.get(trigger.name, 0) + 1
        named.append(trigger if count == 1 else replace(trigger, name=f"{trigger.name}_{count}"))
    return named
