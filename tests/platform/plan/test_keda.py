from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.plan.building import (
    FOREIGN,
    OURS,
    annotated,
    changed,
    codes,
    in_mode,
    keda,
    kserve,
    ome,
    planned,
    raw,
    refusals,
    with_component,
    workload,
)

from pilotlight.k8s.names import ANNOTATION_WAKE_BY as WAKE_BY
from pilotlight.plan.types import Capabilities, Scaling, Trigger
from pilotlight.prometheus import metric_queries
from pilotlight.spec.service import KedaConfig, NodeGroup, ScalingMetric, Service

SEED_QUERY = "avg_over_time(vllm:request_latency_seconds{service='%s'}[5m])"


def scaling(service: Service, **how: Any) -> Scaling:
    return workload(service, **how).scaling


def only(triggers: tuple[Trigger, ...], kind: str = "prometheus") -> Trigger:
    (trigger,) = [trigger for trigger in triggers if trigger.type == kind]
    return trigger


def test_a_latency_query_becomes_a_safe_trigger() -> None:
    made = scaling(ome(keda=keda(query=SEED_QUERY, threshold="0.5", server_address="http://prom:9090")))
    trigger = only(made.triggers)
    assert trigger.metric_type == "Value"
    assert trigger.metadata["ignoreNullValues"] == "false"
    assert trigger.metadata["threshold"] == "0.5"
    assert trigger.metadata["serverAddress"] == "http://prom:9090"
    assert "service='iris'" in trigger.metadata["query"]
    assert "%s" not in trigger.metadata["query"]
    assert made.fallback == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}


@pytest.mark.parametrize(
    ("written", "kept", "factor"),
    [
        ("0.1", "0.1", ""),
        ("0.05", "50", "1000 * (\n"),
        ("0.0004", "0.4", "1000 * (\n"),
        ("2e-5", "20", "1000000 * (\n"),
    ],
)
def test_a_threshold_that_keda_would_round_is_asked_for_in_smaller_units(written: str, kept: str, factor: str) -> None:
    trigger = only(scaling(raw(ome(keda=keda(threshold=written)))).triggers)
    assert trigger.metadata["threshold"] == kept
    assert trigger.metadata["query"].startswith(f"((avg(\n{factor}")


def test_a_formula_keeps_the_units_it_was_written_for() -> None:
    wishes = {"pilotlight.dev/triggers": "latency=0.002", "pilotlight.dev/scaling-formula": "latency / 0.002"}
    made = scaling(raw(ome(annotations={**wishes, "pilotlight.dev/scaling-target": "1"})))
    assert only(made.triggers).metadata["threshold"] == "0.002"


def test_from_zero_requests_decide_and_latency_only_sizes() -> None:
    made = scaling(raw(ome("big", min_replicas=0, keda=keda(threshold="0.5"))))
    assert [trigger.type for trigger in made.triggers] == ["external-push", "prometheus"]
    latency = only(made.triggers)
    assert latency.metadata["query"].endswith("or vector(0)")
    assert float(latency.metadata["activationThreshold"]) > 1000
    assert made.initial_cooldown_period == 360, "the first load of 30 GB at 200 MB/s, twice, plus startup"
    assert made.fallback["replicas"] == 0, "a Prometheus that is down must not wake idle services"


@pytest.mark.parametrize(("model", "probe", "seconds"), [
    ("small", {}, 300),
    ("unsized", {}, 600),
    ("big", {"periodSeconds": 10, "failureThreshold": 180}, 1800),
])  # fmt: skip
def test_a_start_that_nobody_waits_for_any_more_still_ends(model: str, probe: dict[str, int], seconds: int) -> None:
    runner = {"startupProbe": {"httpGet": {"path": "/up", "port": 80}, **probe}} if probe else None
    made = scaling(raw(ome(model, min_replicas=0, runner=runner)))
    assert made.cooldown_period == made.initial_cooldown_period == seconds


def test_the_http_add_on_wakes_where_our_gateway_is_not() -> None:
    capabilities = Capabilities(our_gateway=False, http_add_on=True)
    made = planned(raw(ome(min_replicas=0)), capabilities)
    push = only(made.workloads[0].scaling.triggers, "external-push")
    assert push.metadata["interceptorRoute"] == "iris-engine"
    assert made.activator is not None
    assert made.activator.kind == "interceptor"
    assert made.activator.route["scalingMetric"]["concurrency"]["targetValue"] == 10
    assert made.activator.route["timeouts"] == {"readiness": "600s", "request": "900s", "responseHeader": "900s"}
    assert "interceptorroutes.http.keda.sh" in [requirement.name for requirement in made.requirements]


def test_the_document_may_say_who_wakes_it_where_there_are_both() -> None:
    both = Capabilities(our_gateway=True, http_add_on=True)
    for name, front in (("gateway", "gateway"), ("http-add-on", "interceptor")):
        made = planned(raw(annotated(ome(min_replicas=0), **{WAKE_BY: name})), both).activator
        assert made is not None
        assert made.kind == front


@pytest.mark.parametrize("name", ["http-add-on", "something"])
def test_who_is_named_to_wake_it_must_be_there(name: str) -> None:
    (refused,) = refusals(raw(annotated(ome(min_replicas=0), **{WAKE_BY: name})))
    assert (refused.code, refused.path) == ("PL320", f"metadata.annotations.{WAKE_BY}")
    assert refused.message == f"= {name}, which this target does not have; it must be gateway"


def test_our_gateway_fronts_what_it_wakes() -> None:
    front = planned(raw(ome(min_replicas=0))).activator
    assert front is not None
    assert (front.kind, front.service, front.namespace) == ("gateway", "pilotlight-gateway", "pilotlight-system")
    assert planned(ome()).activator is None


def test_enable_keda_alone_counts_requests_in_flight() -> None:
    trigger = only(scaling(ome(keda=keda(), container_concurrency=6)).triggers)
    assert "pilotlight_requests_in_flight" in trigger.metadata["query"]
    assert (trigger.metric_type, trigger.metadata["threshold"]) == ("AverageValue", "6")


def test_a_threshold_alone_is_about_our_latency() -> None:
    trigger = only(scaling(ome(keda=keda(threshold="0.3"))).triggers)
    assert "histogram_quantile(0.95" in trigger.metadata["query"]
    assert (trigger.metric_type, trigger.metadata["threshold"]) == ("Value", "0.3")


def test_component_over_service_field_by_field() -> None:
    service = replace(
        ome(keda=KedaConfig(threshold="2")), keda=keda(query="sum(x)", threshold="9", server_address="http://p:1")
    )
    metadata = only(scaling(service).triggers).metadata
    assert (metadata["threshold"], metadata["serverAddress"]) == ("2", "http://p:1")
    assert "sum(x)" in metadata["query"]


def test_annotations_override_as_in_ome() -> None:
    written = {"autoscaling.keda.sh/threshold": "7", "autoscaling.keda.sh/prometheus.query": "sum(y)"}
    metadata = only(scaling(annotated(ome(keda=keda(query="sum(x)", threshold="9")), **written)).triggers).metadata
    assert metadata["threshold"] == "7"
    assert "sum(y)" in metadata["query"]


def test_the_service_s_config_does_not_scale_the_router() -> None:
    service = with_component(replace(ome(), keda=keda(query="sum(x)", threshold="9")), "router")
    assert workload(service, "router").scaling.scaler == "hpa"


def test_less_than_or_equal_is_the_inverted_ratio_with_a_warning() -> None:
    made = planned(ome(keda=keda(query="tokens_per_second", threshold="10", operator="LessThanOrEqual")))
    trigger = only(made.workloads[0].scaling.triggers)
    assert (trigger.metadata["threshold"], trigger.metric_type) == ("1", "Value")
    assert "10 / (avg(" in trigger.metadata["query"]
    assert "PL328" in codes(made.warnings)


REFUSED = [
    *(
        (
            keda(query="sum(x)", threshold="1", server_address=f"http://{host}/"),
            "PL369",
            "spec.engine.kedaConfig.promServerAddress",
        )
        for host in (
            "169.254.169.254",
            "2852039166",
            "[fe80::1]:9090",
            "[::ffff:169.254.169.254]",
            "metadata.google.internal",
        )
    ),
    (keda(query="sum(x", threshold="1"), "PL321", "spec.engine.kedaConfig.customPromQuery"),
    (keda(query="sum(x)", threshold="fast"), "PL322", "spec.engine.kedaConfig.scalingThreshold"),
    (keda(query="sum(x)", threshold="0"), "PL322", "spec.engine.kedaConfig.scalingThreshold"),
    (keda(query="sum(x)", threshold="-1"), "PL322", "spec.engine.kedaConfig.scalingThreshold"),
    (keda(query="sum(x)", threshold="1", operator="LessThan"), "PL327", "spec.engine.kedaConfig.scalingOperator"),
]


@pytest.mark.parametrize(("config", "code", "path"), REFUSED)
def test_a_config_that_cannot_work_is_refused_with_its_place(config: KedaConfig, code: str, path: str) -> None:
    assert (code, path) in [(problem.code, problem.path) for problem in refusals(ome(keda=config))]


def test_a_missing_threshold_is_ome_s_default_with_a_warning() -> None:
    made = planned(ome(keda=keda(query="sum(x)")))
    assert only(made.workloads[0].scaling.triggers).metadata["threshold"] == "10"
    assert "PL323" in codes(made.warnings)


def test_kserve_metrics_become_triggers_and_average_value_of_a_latency_does_not() -> None:
    metrics = (
        ScalingMetric("external", "prometheus", "AverageValue", "0.5", "histogram_quantile(0.9, x)", "http://p:9"),
        ScalingMetric(
            "external", "prometheus", "AverageValue", "4", "sum(waiting)", "http://p:9", {"name": "auth"}, "bearer"
        ),
        ScalingMetric("resource", "cpu", "Utilization", "60"),
        ScalingMetric("external", "graphite", "Value", "5", "latency.p95", "http://g"),
        ScalingMetric("pod", "opentelemetry", "AverageValue", "4", "vllm:num_requests_running"),
    )
    made = planned(in_mode(kserve(metrics=metrics, min_replicas=1, max_replicas=4), "Standard"))
    triggers = made.workloads[0].scaling.triggers
    assert {(trigger.type, trigger.metric_type) for trigger in triggers} == {
        ("prometheus", "Value"), ("prometheus", "AverageValue"), ("cpu", "Utilization"), ("graphite", "Value"),
        ("external", "AverageValue"),
    }  # fmt: skip
    assert triggers[1].authentication == {"name": "auth"}
    assert triggers[1].metadata["authModes"] == "bearer"
    assert "PL329" in codes(made.warnings)
    assert len({trigger.name for trigger in triggers}) == len(triggers)


def test_our_other_metrics_are_asked_for_by_annotation() -> None:
    wishes = {"pilotlight.dev/triggers": "latency=0.5, rps=20, concurrency=8, queue-depth=4, gpu-utilization=70"}
    triggers = scaling(ome(annotations=wishes)).triggers
    assert {trigger.name: trigger.metric_type for trigger in triggers} == {
        "latency": "Value", "rps": "AverageValue", "concurrency": "AverageValue", "queue_depth": "AverageValue",
        "gpu_utilization": "Value",
    }  # fmt: skip
    assert codes(refusals(ome(annotations={"pilotlight.dev/triggers": "speed=1"}))) == ["PL326"]
    assert codes(refusals(ome(annotations={"pilotlight.dev/triggers": "latency=quick"}))) == ["PL322"]
    assert codes(refusals(ome(runtime_name=FOREIGN, annotations={"pilotlight.dev/triggers": "rps=1"}))) == ["PL324"]


def test_tokens_scale_by_annotation_for_any_engine() -> None:
    wishes = {"pilotlight.dev/triggers": "tokens-in-queue=4000, time-to-first-token=0.5"}
    both = {"tokens_in_queue": "AverageValue", "time_to_first_token": "Value"}
    for service in (ome(annotations=wishes), ome(runtime_name=FOREIGN, annotations=wishes)):
        triggers = [
            each
            for each in scaling(service, capabilities=Capabilities(our_gateway=True)).triggers
            if each.type == "prometheus"
        ]
        assert {each.name: each.metric_type for each in triggers} == both
        assert all("pilotlight_gateway_t" in each.metadata["query"] for each in triggers)
    assert (
        codes(refusals(ome(annotations=wishes), capabilities=Capabilities(our_gateway=False))) == ["PL324"] * 2
    )  # without our gateway
    cache = {"pilotlight.dev/triggers": "kv-cache=80"}
    (trigger,) = [
        each for each in scaling(ome(runtime_name=FOREIGN, annotations=cache)).triggers if each.type == "prometheus"
    ]
    assert "vllm:kv_cache_usage_perc" in trigger.metadata["query"]
    assert trigger.metric_type == "Value"
    assert codes(refusals(ome(annotations=cache))) == ["PL324"]  # our predictor has no such metric


def formula(text: str, target: str = "1", **engine: Any) -> Service:
    wishes = {"pilotlight.dev/triggers": "latency=0.5, queue-depth=4", "pilotlight.dev/scaling-formula": text}
    return raw(ome(annotations={**wishes, "pilotlight.dev/scaling-target": target}, **engine))


def test_a_formula_makes_one_composite_metric() -> None:
    modifiers = scaling(formula("max([latency / 0.5, queue_depth / 4])")).modifiers
    assert modifiers == {"formula": "max([latency / 0.5, queue_depth / 4])", "target": "1", "metricType": "Value"}


def test_a_formula_that_would_disarm_the_safeguards_is_refused() -> None:
    assert codes(refusals(formula("x + y"))) == ["PL334"]
    assert codes(refusals(formula("latency", min_replicas=0))) == ["PL335"]
    assert codes(refusals(formula("latency", target="0.5"))) == ["PL336"]
    assert not refusals(formula("latency + requests", min_replicas=0))


def test_a_step_up_waits_until_the_last_one_could_help() -> None:
    behavior = scaling(ome("big", max_replicas=8, keda=keda(threshold="1"))).behavior
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 2, "periodSeconds": 360}]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    written = {"scaleDown": {"stabilizationWindowSeconds": 42}}
    assert scaling(ome(keda=keda(), behavior=written)).behavior["scaleDown"]["stabilizationWindowSeconds"] == 42


def test_a_target_without_effect_beside_a_query_is_warned_about() -> None:
    query = keda(query="sum(x)", threshold="9")
    (warning,) = planned(ome(keda=query, scale_target=70)).warnings
    assert (warning.code, warning.path) == ("PL360", "spec.engine.scaleTarget")
    assert not planned(ome(keda=query, scale_target=70, scale_metric="concurrency")).warnings


def test_groups_of_nodes_are_scaled_too() -> None:
    made = scaling(ome(worker=NodeGroup(size=1), keda=keda(threshold="1"), min_replicas=1, max_replicas=2))
    assert (made.scaler, made.max_replicas) == ("keda", 2)


def test_cpu_alone_gets_no_fallback_since_keda_refuses_it() -> None:
    service = annotated(ome(scale_metric="cpu"), **{"ome.io/autoscalerClass": "keda"})
    assert [trigger.type for trigger in scaling(service).triggers] == ["cpu"]
    assert scaling(service).fallback == {}


numbers = st.one_of(st.floats(0.001, 1e6).map(lambda value: f"{value:.6f}"), st.sampled_from(["", "0", "x", "-1"]))
texts = st.one_of(
    st.sampled_from([SEED_QUERY, "", "sum(x)", "histogram_quantile(0.9, sum by (le) (rate(x_bucket[1m])))", "x # y"]),
    st.text(max_size=30),
)
configs = st.builds(
    KedaConfig,
    enabled=st.sampled_from([None, True, False]),
    server_address=st.sampled_from(["", "http://p:9090"]),
    query=texts,
    threshold=numbers,
    operator=st.sampled_from(["", "GreaterThanOrEqual", "LessThanOrEqual", "Equal"]),
)
metrics = st.lists(
    st.builds(
        ScalingMetric,
        kind=st.just("external"),
        name=st.sampled_from(["prometheus", "graphite"]),
        target_type=st.sampled_from(["Value", "AverageValue"]),
        target=numbers,
        query=texts,
    ),
    max_size=3,
)


def dangers(made: Scaling) -> list[str]:
    """What must never be written, whatever was asked for."""
    found = []
    asked = [trigger for trigger in made.triggers if trigger.type == "prometheus"]
    if made.min_replicas == 0 and not any(trigger.type == "external-push" for trigger in made.triggers):
        found.append("nothing wakes it from zero")
    if made.triggers and not made.fallback and any(trigger.type not in ("cpu", "memory") for trigger in made.triggers):
        found.append("no fallback")
    for trigger in asked:
        metadata = trigger.metadata
        tail = "or vector(0)" if made.min_replicas == 0 else "))"
        checks = {
            "an empty answer counts as 0": metadata["ignoreNullValues"] != "false",
            "no guard": not metadata["query"].endswith(tail) or ">" not in metadata["query"],
            "latency by AverageValue": trigger.metric_type != "Value"
            and metric_queries.is_level(metadata["query"].split("\n)")[0]),
            "stale latency keeps it awake": made.min_replicas == 0 and float(metadata["activationThreshold"]) < 1e5,
            "a key that KEDA does not know": bool(metadata.keys() - KNOWN),
            "a threshold that is no positive number": not float(metadata["threshold"]) > 0,
            "brackets that do not match": bool(metric_queries.syntax_problem(metadata["query"])),
        }
        found += [name for name, wrong in checks.items() if wrong]
    return found


KNOWN = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues", "authModes"}


@settings(max_examples=300, deadline=None)
@given(configs, configs, metrics, st.integers(0, 3), st.sampled_from([OURS, FOREIGN]), st.booleans())
def test_no_config_makes_a_dangerous_trigger(
    general: KedaConfig, own: KedaConfig, asked: list[ScalingMetric], least: int, runtime: str, gateway: bool
) -> None:
    service = replace(raw(ome(runtime_name=runtime, min_replicas=least, max_replicas=4, keda=own)), keda=general)
    service = changed(service, metrics=tuple(asked))
    refused = refusals(service, capabilities=Capabilities(our_gateway=gateway))
    if refused:
        assert all(problem.path and problem.code.startswith("PL3") for problem in refused)
        return
    made = planned(service, Capabilities(our_gateway=gateway)).workloads[0].scaling
    assert made.scaler in ("keda", "hpa")
    assert made.scaler == "hpa" or not dangers(made)


SCHEDULE = "0 8 * * 1-5 to 0 18 * * 1-5 Europe/Berlin = 3"


def test_a_schedule_becomes_a_cron_trigger_beside_those_for_requests() -> None:
    made = scaling(raw(ome(min_replicas=0, annotations={"pilotlight.dev/schedule": SCHEDULE})))
    trigger = only(made.triggers, "cron")
    assert trigger.metadata == {
        "timezone": "Europe/Berlin", "start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "desiredReplicas": "3",
    }  # fmt: skip
    assert only(made.triggers, "external-push")
    several = f"{SCHEDULE}; 0 9 * * 6 to 0 12 * * 6 UTC = 1"
    made = scaling(raw(ome(min_replicas=1, annotations={"pilotlight.dev/schedule": several})))
    assert [each.name for each in made.triggers if each.type == "cron"] == ["schedule", "schedule_2"]
    assert only(made.triggers)  # requests in flight, by default


@pytest.mark.parametrize("text", ["8 to 18", "0 8 * * * to 0 18 * * * Nowhere = 2", "0 99 * * * to 0 18 * * * UTC = 2"])
def test_a_schedule_that_cannot_be_read_is_refused(text: str) -> None:
    assert codes(refusals(raw(ome(annotations={"pilotlight.dev/schedule": text})))) == ["PL337"]
