"""Recording rules and alerts for all services, as a rules file and the chart's PrometheusRule. Pure.

Alerts are about symptoms for users: error budget burn, unanswered requests, failing starts. Alerts that depend on a
service's plan, such as its deadlines, are in its manifests (render/template_values.py). Adjustable bounds are
recorded values.
"""

from collections.abc import Callable
from typing import Any, Final

from pilotlight import contract

Json = Any
RuleEntry = dict[str, Json]
Select = Callable[..., str]

ERROR_BUDGET: Final = 0.001  # an objective of 99.9 %
COLD_START_S: Final = 60.0
QUICK_S: Final = 0.5  # as QUEUE_S a bound of contract.LATENCY_BUCKETS, so that no quantile is interpolated
QUEUE_S: Final = 1.0
BUDGET: Final = "pilotlight:error_budget:ratio"
SLOW_START: Final = "pilotlight:cold_start_bound:seconds"
WINDOWS: Final = ("5m", "30m", "1h", "6h")
# Burn rates over a long window, and a short one that shows that it continues: 14.4 spends 2 % of a month's budget in an
# hour (page), 6 spends 5 % in six hours (ticket).
BURNS: Final = (("Fast", 14.4, "1h", "5m", "critical"), ("Slow", 6.0, "6h", "30m", "warning"))

BY: Final = f"{contract.LABEL_NAMESPACE}, {contract.LABEL_SERVICE}"
BY_REVISION: Final = f"{BY}, {contract.LABEL_REVISION}"
FAILED: Final = 'code=~"5.."'
NO_REPLICA: Final = 'reason="no_replica"'  # the gateway's own 503, which no replica counts
COUNT: Final = f"{contract.METRIC_REQUEST_DURATION}_count"
SERVICE: Final = "{{ $labels.namespace }}/{{ $labels.inference_service }}"


def plain(metric: str, *matchers: str) -> str:
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def errors_of(window: str, select: Select = plain) -> str:
    """Return failed requests per second by service: 5xx of replicas, without a replica, or lost with their replica."""
    return _summed(window, select(COUNT, FAILED), select)


def requests_of(window: str, select: Select = plain) -> str:
    return _summed(window, select(COUNT), select)


def _summed(window: str, answered: str, select: Select) -> str:
    """Sum the rates of replicas and of requests that only the gateway counts."""
    counted = (answered, select(contract.METRIC_GATEWAY_REJECTED, NO_REPLICA), select(contract.METRIC_GATEWAY_LOST))
    return f"sum by ({BY}) ({' or '.join(f'rate({each}[{window}])' for each in counted)})"


def rules(error_budget: float = ERROR_BUDGET, cold_start_s: float = COLD_START_S) -> dict[str, Json]:
    """Return the content of a rules file, also the `spec` of a PrometheusRule."""
    return {
        "groups": [
            {"name": "pilotlight.records", "rules": recorded(error_budget, cold_start_s)},
            {"name": "pilotlight.alerts", "rules": alerts()},
        ]
    }


def recorded(error_budget: float, cold_start_s: float) -> list[RuleEntry]:
    quick = f'sum by ({BY}) (rate({contract.METRIC_REQUEST_DURATION}_bucket{{le="{QUICK_S}"}}[5m]))'
    return [
        _record(BUDGET, f"vector({error_budget:g})"),
        _record(SLOW_START, f"vector({cold_start_s:g})"),
        # 0 without errors, no result without requests.
        *(
            _record(_ratio(window), f"({errors_of(window)} or 0 * {requests}) / ({requests} > 0)")
            for window, requests in ((each, requests_of(each)) for each in WINDOWS)
        ),
        _record("pilotlight:requests_within_500ms:ratio_rate5m", f"{quick} / (sum by ({BY}) (rate({COUNT}[5m])) > 0)"),
    ]


def _ratio(window: str) -> str:
    return f"pilotlight:request_errors:ratio_rate{window}"


def alerts() -> list[RuleEntry]:
    return [
        *(_burn(*each) for each in BURNS),
        _cold_start_slow(),
        _model_load_failing(),
        _queueing(),
        _stuck_at_zero(),
        _scaler_no_data(),
        _at_max(),
        _canary_rolled_back(),
    ]


def _burn(name: str, factor: float, long: str, short: str, severity: str) -> RuleEntry:
    bound = f"{factor:g} * scalar({BUDGET})"
    return _alert(
        f"PilotlightErrorBudgetBurn{name}", f"{_ratio(long)} > {bound} and {_ratio(short)} > {bound}", "", severity,
        f"{SERVICE} spends its error budget {factor:g} times too fast",
        f"Over {long} {{{{ $value | humanizePercentage }}}} of its requests failed, and they still do. "
        "platformctl status and logs of the service say why; platformctl rollback goes back.",
    )  # fmt: skip


def _cold_start_slow() -> RuleEntry:
    """Fires for an hour after a start: a replica exports its start time for as long as it runs."""
    took = f'{contract.METRIC_COLD_START}{{phase="total"}}'
    slowest = f"max by ({BY_REVISION}) ({took} unless {took} == {took} offset 1h)"
    return _alert(
        "PilotlightColdStartSlow", f"{slowest} > scalar({SLOW_START})", "1m", "warning",
        f"A start of {SERVICE} took {{{{ $value | humanizeDuration }}}}",
        "The dashboard Autoscaling shows its phases: a long fetch wants a cache, a long import a pilot light, "
        "a long load a smaller or a compiled model. Or keep a replica: minReplicas 1.",
    )  # fmt: skip


def _model_load_failing() -> RuleEntry:
    """From the control process, or from a replica that runs without its model."""
    failed = f'max by ({BY_REVISION}) ({contract.METRIC_REPLICAS}{{state="failed"}}) > 0'
    broken = f'max by ({BY_REVISION}) ({contract.METRIC_MODEL_STATE}{{state="UNAVAILABLE"}}) == 1'
    loaded = f'max by ({BY_REVISION}) ({contract.METRIC_MODEL_STATE}{{state=~"READY|PARKED"}}) == 1'
    return _alert(
        "PilotlightModelLoadFailing", f"({failed}) or (({broken}) unless ({loaded}))", "5m", "critical",
        f"A model of {SERVICE} cannot be loaded",
        "Revision {{ $labels.revision }} has no replica that could load its model. platformctl status says the reason; "
        "the revision before it keeps the requests.",
    )  # fmt: skip


def _queueing() -> RuleEntry:
    waits = f"sum by (le, {BY}) (rate({contract.METRIC_QUEUE_SECONDS}_bucket[5m]))"
    return _alert(
        "PilotlightQueueing", f"histogram_quantile(0.95, {waits}) > {QUEUE_S:g}", "10m", "warning",
        f"Requests for {SERVICE} wait {{{{ $value | humanizeDuration }}}} for their execution",
        "One in twenty does, or longer: raise maxReplicas, lower the scale target, or allow larger batches.",
    )  # fmt: skip


def _stuck_at_zero() -> RuleEntry:
    waiting = f"sum by ({BY}) ({contract.METRIC_GATEWAY_WAITING}) > 0"
    ready = f'sum by ({BY}) ({contract.METRIC_REPLICAS}{{state="ready"}}) > 0'
    answering = f"count by ({BY}) ({contract.METRIC_IN_FLIGHT}) > 0"
    return _alert(
        "PilotlightStuckAtZeroWithQueue", f"({waiting}) unless on ({BY}) ({ready} or {answering})", "2m", "critical",
        f"{{{{ $value }}}} requests for {SERVICE} wait, and no replica comes",
        "It is at zero and does not wake: no room, no image, no scaler, or a model that does not load. "
        "platformctl status and events say which.",
    )  # fmt: skip


def _scaler_no_data() -> RuleEntry:
    """A target without a signal, or with KEDA a scaler that reports errors."""
    unanswered = f"{contract.METRIC_SCALE_TARGET} unless on ({BY}, unit, metric) {contract.METRIC_SCALE_SIGNAL}"
    keda = "sum by (namespace, scaledObject, scaler) (rate(keda_scaler_detail_errors_total[5m])) > 0"
    return _alert(
        "PilotlightScalerNoData", f"({unanswered}) or ({keda})", "5m", "warning",
        "An autoscaler in {{ $labels.namespace }} has no data",
        "{{ $labels.inference_service }}{{ $labels.scaledObject }}: its query finds nothing, so it holds its fallback. "
        "Is it scraped, and is the query right?",
    )  # fmt: skip


def _at_max() -> RuleEntry:
    """At its maximum with a signal above target; a maximum that suffices is no problem."""
    wanted = f'max by ({BY_REVISION}) ({contract.METRIC_REPLICAS}{{state="desired"}})'
    most = f'max by ({BY_REVISION}) ({contract.METRIC_REPLICA_LIMITS}{{bound="max"}})'
    each = f"{BY}, unit, metric"
    pressed = f"max by ({each}) ({contract.METRIC_SCALE_SIGNAL}) > max by ({each}) ({contract.METRIC_SCALE_TARGET})"
    ours = f"({wanted} >= {most}) and on ({BY}) ({pressed})"
    return _alert(
        "PilotlightAtMaxReplicas", f"({ours}) or ({_hpa_at_max()})", "15m", "warning",
        "A service in {{ $labels.namespace }} cannot grow any more",
        "{{ $labels.inference_service }}{{ $labels.horizontalpodautoscaler }} runs as many replicas as it may and "
        "needs more: raise maxReplicas, or make each replica faster.",
    )  # fmt: skip


def _hpa_at_max() -> str:
    """Return the same by kube-state-metrics, in namespaces with services."""
    on = "on (namespace, horizontalpodautoscaler)"
    desired = "kube_horizontalpodautoscaler_status_desired_replicas"
    most = "kube_horizontalpodautoscaler_spec_max_replicas"
    limited = 'kube_horizontalpodautoscaler_status_condition{condition="ScalingLimited",status="true"} == 1'
    ours = f"on (namespace) group by (namespace) ({contract.METRIC_IN_FLIGHT})"
    return f"({desired} >= {on} {most}) and {on} ({limited}) and {ours}"


def _canary_rolled_back() -> RuleEntry:
    """Fires for an hour after a rollback, whose phase is exported until the next canary.

    The state before that hour is looked up over a week, so that a gap in the series does not fire again.
    """
    back = f'{contract.METRIC_CANARY_PHASE}{{phase="RolledBack"}}'
    before = f"max by ({BY_REVISION}) (last_over_time({back}[1w] offset 1h)) == 1"
    since = f"max by ({BY_REVISION}) (min_over_time({back}[1h])) == 1"
    return _alert(
        "PilotlightCanaryRolledBack",
        f"max by ({BY_REVISION}) ({back}) == 1 unless ({before} and {since})", "", "warning",
        f"The canary of {SERVICE} was rolled back",
        "Revision {{ $labels.revision }} failed its checks and gets no requests. platformctl canary history says "
        "which.",
    )  # fmt: skip


def _record(name: str, expression: str) -> RuleEntry:
    return {"record": name, "expr": expression}


def _alert(name: str, expression: str, pending: str, severity: str, summary: str, description: str) -> RuleEntry:
    return {
        "alert": name,
        "expr": expression,
        **({"for": pending} if pending else {}),
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }
