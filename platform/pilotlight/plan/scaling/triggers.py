"""Choice of KEDA triggers from kedaConfig, autoScaling, scaleMetric and annotations; keda.py builds them."""

import re
import socket
from collections.abc import Iterator
from dataclasses import fields, replace
from ipaddress import ip_address
from typing import Final, cast
from urllib.parse import urlsplit

from pilotlight.k8s.cron import Schedule
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.scaling import keda
from pilotlight.plan.scaling.keda import TriggerSpec
from pilotlight.plan.types import DecisionLog, Trigger
from pilotlight.prometheus import metric_queries
from pilotlight.prometheus.metric_queries import Kind
from pilotlight.spec.service import Component, KedaConfig, ScalingMetric

OPERATORS: Final = ("GreaterThanOrEqual", "LessThanOrEqual")
DEFAULT_CONCURRENCY: Final = 10
DEFAULT_RPS: Final = 200  # Knative's default target
OME_THRESHOLD: Final = "10"
_SCHEDULE: Final = re.compile(r"(\S+(?: +\S+){4}) +to +(\S+(?: +\S+){4}) +([A-Za-z][\w+/-]*) *= *([1-9]\d{0,5})")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def config_of(context: PlanContext) -> KedaConfig | None:
    """Return the component's kedaConfig over the service's, which no router has, with OME's annotations on top."""
    own = context.component.keda
    general = context.service.keda if context.serves_model else None
    config = own or general
    if own is not None and general is not None:
        written = {field.name: getattr(own, field.name) for field in fields(own)}
        config = replace(general, **{name: value for name, value in written.items() if value not in (None, "", {})})
    annotated = {
        "query": context.annotation(document_annotations.KEDA_QUERY),
        "threshold": context.annotation(document_annotations.KEDA_THRESHOLD),
        "operator": context.annotation(document_annotations.KEDA_OPERATOR),
        "server_address": context.annotation(document_annotations.KEDA_ADDRESS),
    }
    overrides = {name: value for name, value in annotated.items() if value}
    return replace(config or KedaConfig(), **overrides) if overrides else config  # type: ignore[arg-type]


def config_path(context: PlanContext, field: str) -> str:
    """Return the path of a kedaConfig field: on the component, or on the service."""
    path = context.path(f"kedaConfig.{field}")
    return path if path in context.service.locations or context.component.keda else f"spec.kedaConfig.{field}"


def choose_triggers(context: PlanContext, min_replicas: int, log: DecisionLog) -> list[Trigger]:
    """Return all configured triggers in the order of their sources, with a request trigger if the minimum is 0."""
    specs = [*_from_annotation(context, log), *_from_config(context, log), *_from_metrics(context, log)]
    unguarded = _unguarded(context)
    kinds = _simple_kinds(context, bool(specs or unguarded))
    if not kinds and min_replicas > 0 and context.component.scale_metric is None and context.component.scale_target:
        message = "has no effect next to other triggers; set its scaleMetric, or kedaConfig.scalingThreshold"
        log.warn("PL360", context.path("scaleTarget"), message)
    if min_replicas > 0 and context.choice.is_pilotlight:
        specs += [_metric_spec(context, kind, target) for kind, target in kinds.items()]
        kinds = {}
    triggers = [*(keda.prometheus(context, spec, min_replicas) for spec in specs), *unguarded]
    if kinds or min_replicas == 0:
        triggers = [*_request_triggers(context, kinds, min_replicas, log), *triggers]
    triggers += _from_schedule(context, log)
    for address in {
        trigger.metadata.get(key, "") for trigger in triggers for key in ("serverAddress", "scalerAddress")
    }:
        if is_link_local(address):
            of_metrics = any(metric.server_address == address for metric in context.component.metrics)
            path = context.path("autoScaling.metrics") if of_metrics else config_path(context, "promServerAddress")
            message = f"{address} is link-local, where clouds keep credentials; use a Service of the cluster"
            log.error("PL369", path, message)
    return _uniquely_named(triggers)


def is_link_local(address: str) -> bool:
    """Return whether a URL or `host:port` names a link-local address, in any spelling that a resolver takes."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    try:
        parsed = ip_address(host)
        return (getattr(parsed, "ipv4_mapped", None) or parsed).is_link_local
    except ValueError:
        pass
    try:
        return ip_address(socket.inet_aton(host)).is_link_local  # 2852039166, 0xa9.0xfe.43518
    except (OSError, UnicodeError):
        return host == "metadata.google.internal"


def _simple_kinds(context: PlanContext, others: bool) -> dict[Kind, str]:
    """Return scaleMetric and scaleTarget; by default concurrency."""
    component = context.component
    if component.scale_metric == "rps":
        return {"rps": str(component.scale_target or DEFAULT_RPS)}
    if component.scale_metric in ("cpu", "memory") or (others and component.scale_metric is None):
        return {}
    return {"concurrency": str(concurrency_target(component))}


def concurrency_target(component: Component) -> int:
    """Return the target concurrency of a replica; a scaleTarget of another metric does not count."""
    written = component.scale_target if component.scale_metric in (None, "concurrency") else None
    return written or component.container_concurrency or DEFAULT_CONCURRENCY


def _request_triggers(
    context: PlanContext, kinds: dict[Kind, str], min_replicas: int, log: DecisionLog
) -> Iterator[Trigger]:
    trigger = keda.request_trigger(context, concurrency_target(context.component))
    if trigger is None:
        _report_no_activator(context, min_replicas, log)
        return
    yield trigger
    if "rps" in kinds and context.choice.is_pilotlight:
        yield keda.prometheus(context, _metric_spec(context, "rps", kinds["rps"]), min_replicas)
    elif "rps" in kinds:
        message = "a third-party server does not export rps; requests in flight at the gateway are used instead"
        log.warn("PL325", context.path("scaleMetric"), message)


def _report_no_activator(context: PlanContext, min_replicas: int, log: DecisionLog) -> None:
    named = context.annotation(document_annotations.WAKE_BY)
    if named:
        available = " or ".join(keda.activators(context)) or "nothing: this target has neither gateway nor http-add-on"
        message = f"= {named}, which this target does not have; it must be {available}"
        log.error("PL320", context.annotation_path(document_annotations.WAKE_BY), message)
    elif min_replicas == 0:
        log.error(
            "PL320", context.path("minReplicas"),
            "nothing can wake it from 0: at zero replicas it has no metrics; install the Pilotlight gateway or "
            "the KEDA HTTP add-on, use serverless, or set minReplicas to 1",
        )  # fmt: skip
    else:
        message = "the runtime exports no known metric; set kedaConfig.customPromQuery and scalingThreshold"
        log.error("PL324", context.path("kedaConfig"), message)


def _metric_spec(context: PlanContext, kind: Kind, target: str) -> TriggerSpec:
    service = context.service
    query = metric_queries.metric_query(kind, service.name, service.namespace)
    return TriggerSpec(
        kind.replace("-", "_"), query, target, metric_queries.MEASURES[kind], _address(context),
        has_request_rate=context.choice.is_pilotlight,
    )  # fmt: skip


def _address(context: PlanContext) -> str:
    config = config_of(context)
    return (config.server_address if config else "") or context.capabilities.prometheus


def _from_annotation(context: PlanContext, log: DecisionLog) -> Iterator[TriggerSpec]:
    """Yield triggers of the annotation `latency=0.5, queue-depth=4`: kinds without a field in either project."""
    for part in filter(None, (part.strip() for part in context.annotation(document_annotations.TRIGGERS).split(","))):
        kind, _, target = (text.strip() for text in part.partition("="))
        path = context.annotation_path(document_annotations.TRIGGERS)
        if kind not in metric_queries.MEASURES:
            log.error("PL326", path, f"{kind} is not a trigger; use one of {', '.join(metric_queries.MEASURES)}")
        elif not _positive(target):
            log.error("PL322", path, f"{kind} = {target or 'nothing'}, must be a number above 0")
        elif problem := _missing_metric(context, kind):
            log.error("PL324", path, f"{kind} is a metric of {problem}")
        else:
            yield _metric_spec(context, cast(Kind, kind), target)


def _from_schedule(context: PlanContext, log: DecisionLog) -> Iterator[Trigger]:
    """Yield cron triggers of `0 8 * * 1-5 to 0 18 * * 1-5 Europe/Berlin = 3`; several are separated by semicolons."""
    for part in filter(None, map(str.strip, context.annotation(document_annotations.SCHEDULE).split(";"))):
        match = _SCHEDULE.fullmatch(part)
        try:
            if match is None:
                raise ValueError("must be START to END TIMEZONE = REPLICAS")
            yield keda.cron(Schedule(match[1], match[2], match[3], int(match[4])))
        except ValueError as error:
            message = f"{part}: {error}, such as 0 8 * * 1-5 to 0 18 * * 1-5 Europe/Berlin = 3"
            log.error("PL337", context.annotation_path(document_annotations.SCHEDULE), message)


def _missing_metric(context: PlanContext, kind: str) -> str:
    """Return what exports a metric that this component has not; empty: it has it."""
    gateway = context.capabilities.our_gateway or context.capabilities.access_at_gateway
    if kind in metric_queries.OF_GATEWAY:
        return "" if gateway else "the Pilotlight gateway, which this cluster does not have"
    if kind in metric_queries.OF_ENGINES:
        return "vLLM, SGLang and llama.cpp, not of the Pilotlight predictor" if context.choice.is_pilotlight else ""
    return "" if context.choice.is_pilotlight else "the Pilotlight predictor, not of this image"


def _from_config(context: PlanContext, log: DecisionLog) -> Iterator[TriggerSpec]:
    config = config_of(context)
    if config is None or config.enabled is False or not (config.query or config.threshold):
        return
    threshold = _threshold(context, config, log)
    inverted = _inverted(context, config, log)
    query = config.query.replace("%s", context.service.name) or metric_queries.metric_query(
        "latency", context.service.name, context.service.namespace
    )
    if not config.query and not context.choice.is_pilotlight:
        path = config_path(context, "customPromQuery")
        log.error("PL324", path, "the runtime exports no known latency metric; set a query")
    elif mistake := metric_queries.syntax_problem(query):
        log.error("PL321", config_path(context, "customPromQuery"), f"the query {mistake}")
    elif threshold:
        yield TriggerSpec(
            "keda" if config.query else "latency", query, threshold, metric_queries.measure(query), _address(context),
            inverted, context.choice.is_pilotlight, config.authentication, config.auth_modes,
        )  # fmt: skip


def _threshold(context: PlanContext, config: KedaConfig, log: DecisionLog) -> str:
    path = config_path(context, "scalingThreshold")
    if not config.threshold:
        log.warn("PL323", path, f"is missing; OME's default of {OME_THRESHOLD} is used, in the unit of the query")
        return OME_THRESHOLD
    if not _positive(config.threshold):
        log.error("PL322", path, f"scalingThreshold = {config.threshold}, must be a number above 0")
        return ""
    return config.threshold


def _inverted(context: PlanContext, config: KedaConfig, log: DecisionLog) -> bool:
    path = config_path(context, "scalingOperator")
    if config.operator and config.operator not in OPERATORS:
        log.error("PL327", path, f"scalingOperator = {config.operator}, must be one of {', '.join(OPERATORS)}")
    if config.operator != "LessThanOrEqual":
        return False
    log.warn(
        "PL328", path,
        "is converted to threshold / query with threshold 1: more replicas when the query falls below its threshold; "
        "OME ignores this field and scales up when the query rises",
    )  # fmt: skip
    return True


def _from_metrics(context: PlanContext, log: DecisionLog) -> Iterator[TriggerSpec]:
    """Yield the Prometheus metrics of KServe's autoScaling.metrics."""
    for index, metric in enumerate(context.component.metrics):
        path = context.path(f"autoScaling.metrics[{index}]")
        if metric.kind == "pod" and metric.name.startswith("pilotlight_"):
            labels = metric_queries.labels(context.service.name, context.service.namespace)
            metric = replace(metric, query=metric.query or f"sum({metric.name}{{{labels}}})")
        elif metric.kind != "external" or metric.name != "prometheus":
            continue
        if mistake := metric_queries.syntax_problem(metric.query):
            log.error("PL321", f"{path}.{metric.kind}.metric.query", f"the query {mistake}")
        elif not _positive(metric.target):
            message = f"{metric.target or 'nothing'}, must be a number above 0"
            log.error("PL322", f"{path}.{metric.kind}.target", message)
        else:
            yield _metric_trigger(context, metric, index, path, log)


def _metric_trigger(
    context: PlanContext, metric: ScalingMetric, index: int, path: str, log: DecisionLog
) -> TriggerSpec:
    measured = metric_queries.measure(metric.query)
    if metric.target_type == "AverageValue" and metric_queries.is_level(metric.query):
        message = "AverageValue ignores the current replicas, which a time or percentage needs; Value is used"
        log.warn("PL329", f"{path}.{metric.kind}.target.type", message)
    elif metric.target_type == "Value":
        measured = "level"
    elif metric.target_type == "AverageValue":
        measured = "total"
    address = metric.server_address or context.capabilities.prometheus
    return TriggerSpec(
        f"metric_{index}", metric.query, metric.target, measured, address,
        has_request_rate=context.choice.is_pilotlight, authentication=metric.authentication,
        auth_modes=metric.auth_modes,
    )  # fmt: skip


def _unguarded(context: PlanContext) -> list[Trigger]:
    """Return triggers without a guarded query: cpu, memory, graphite, pod metrics."""
    component = context.component
    triggers: list[Trigger] = []
    if component.scale_metric in ("cpu", "memory"):
        utilization = component.scale_metric_type in (None, "Utilization")
        triggers.append(keda.resource(component.scale_metric, str(component.scale_target or 80), utilization))
    for index, metric in enumerate(component.metrics):
        if metric.kind == "resource":
            triggers.append(keda.resource(metric.name, metric.target, metric.target_type == "Utilization"))
        elif metric.name == "graphite":
            triggers.append(keda.graphite(f"metric_{index}", metric))
        elif metric.kind == "pod" and not metric.name.startswith("pilotlight_"):
            triggers.append(keda.pod_metric(context, f"metric_{index}", metric))
    return triggers


def _positive(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text.strip())) and float(text) > 0


def _uniquely_named(triggers: list[Trigger]) -> list[Trigger]:
    """Number triggers of the same name, which KEDA rejects."""
    seen: dict[str, int] = {}
    named: list[Trigger] = []
    for trigger in triggers:
        count = seen[trigger.name] = seen.get(trigger.name, 0) + 1
        named.append(trigger if count == 1 else replace(trigger, name=f"{trigger.name}_{count}"))
    return named
