"""Plans written by hand, at least two of each mode: what the golden files are made of."""

from dataclasses import replace
from typing import Any

from pilotlight.k8s import names
from pilotlight.plan.types import Activator, EndpointPicker, Plan, Scaling, Traffic, Trigger, Workload

GATEWAY = {"name": "public", "namespace": "gateways", "sectionName": "https"}
PROBE = {"httpGet": {"path": "/v2/health/ready", "port": 8080}}


def template(labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    main = {
        "name": "predictor",
        "image": "pilotlight/predictor:0.1.0",
        "env": [{"name": "INFERENCE_MODEL_PATH", "value": "s3://models/iris"}],
        "ports": [{"name": "http1", "containerPort": 8080}],
        "readinessProbe": PROBE,
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        **container,
    }
    return {
        "metadata": {"labels": labels or {"ome.io/inferenceservice": "iris"}},
        "spec": {"serviceAccountName": "iris", "containers": [main]},
    }


GPU = template(image="vllm/vllm-openai:v0.11.0", resources={"limits": {"nvidia.com/gpu": "8"}})

KPA = Scaling(
    "kpa", 0, 4,
    annotations={
        "autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev",
        "autoscaling.knative.dev/metric": "concurrency",
        "autoscaling.knative.dev/target": "10",
        "autoscaling.knative.dev/min-scale": "0",
        "autoscaling.knative.dev/max-scale": "4",
    },
)  # fmt: skip

BEHAVIOR = {
    "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]},
    "scaleDown": {"stabilizationWindowSeconds": 600},
}
LATENCY = Trigger(
    "prometheus", "p95",
    {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": 'histogram_quantile(0.95, sum by (le) (rate(pilotlight_request_duration_seconds_bucket{inference_service="iris",namespace="default"}[1m])))',  # noqa: E501
        "threshold": "0.5",
        "activationThreshold": "1000000",
        "ignoreNullValues": "false",
    },
    "Value",
)  # fmt: skip
FALLBACK = {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}


def keda(*triggers: Trigger, least: int = 1, **more: Any) -> Scaling:
    return Scaling("keda", least, 4, triggers=triggers, behavior=BEHAVIOR, fallback=FALLBACK, **more)


def hpa(least: int = 1, most: int = 3) -> Scaling:
    target = {"type": "Utilization", "averageUtilization": 80}
    return Scaling("hpa", least, most, metrics=({"type": "Resource", "resource": {"name": "cpu", "target": target}},))


def fixed(count: int = 1) -> Scaling:
    return Scaling("none", count, count)


def workload(role: Any = "engine", mode: Any = "raw", **more: Any) -> Workload:
    name = more.pop("name", f"iris-{role}")
    more = {"revision": f"{name}-1f3a9c07", "template": template(), "scaling": fixed(), **more}
    return Workload(role, name, mode=mode, **more)


def service(*workloads: Workload, entry: str = "", **more: Any) -> Plan:
    """The first workload is the entry unless another one is named."""
    more = {"labels": names.service_labels("ome", "iris"), "service_account": "iris", **more}
    return Plan("iris", "default", workloads[0].mode, workloads, entry or workloads[0].name, **more)


def push(**metadata: str) -> Trigger:
    return Trigger("external-push", "requests", metadata)


def serverless() -> Plan:
    engine = workload(
        mode="serverless", scaling=KPA, container_concurrency=20, timeout_seconds=300, progress_deadline_seconds=660,
        annotations={"serving.knative.dev/rollout-duration": "120s"},
    )  # fmt: skip
    return service(engine, mapped_host="iris.demo.example.com")


def serverless_canary() -> Plan:
    """A transformer before its predictor, which is being replaced step by step."""
    split = (Traffic("iris-predictor-1f3a9c07", 10, "latest"), Traffic("iris-predictor-0be4d2aa", 90, "prev"))
    return service(
        workload("transformer", "serverless", scaling=KPA, revision=""),
        workload("predictor", "serverless", scaling=KPA, traffic=split, port=8081, port_name="h2c"),
        labels=names.service_labels("kserve", "iris"),
    )


def raw_latency() -> Plan:
    ports = [{"name": "http1", "containerPort": 8080}, {"name": "grpc", "containerPort": 8081}]
    engine = workload(
        template=template(ports=ports), scaling=keda(LATENCY), disruption={"maxUnavailable": 1}, timeout_seconds=300,
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    )  # fmt: skip
    return service(engine, hosts=("iris.example.com",), gateway=GATEWAY)


def raw_hpa_foreign() -> Plan:
    """Somebody's image with an HPA, without a service account of ours and without metrics."""
    engine = workload(
        template=GPU, scaling=hpa(), is_pilotlight=False, metrics_port=None, strategy={"type": "Recreate"}
    )
    return service(engine, service_account="", monitoring=False)


def raw_canary() -> Plan:
    split = (Traffic("iris-engine-1f3a9c07", 80), Traffic("iris-blue-engine-5a5a5a5a", 20))
    canary = workload(name="iris-blue-engine", revision="iris-blue-engine-5a5a5a5a", scaling=keda(LATENCY))
    return service(workload(scaling=keda(LATENCY), traffic=split), canary, gateway=GATEWAY, hosts=("iris.example.com",))


def raw_inference_pool() -> Plan:
    """A canary behind the Gateway API Inference Extension: two pools, each with its endpoint picker."""
    image = {"image": "registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0"}
    picker = EndpointPicker(image, {}, 2, '{"kind":"EndpointPickerConfig"}', {"team": "llm"}, {})
    return replace(raw_canary(), endpoint_picker=picker, monitoring=False)


def raw_from_zero() -> Plan:
    """Our gateway, in a namespace of its own, holds the requests that wake the service."""
    request = push(scalerAddress="pilotlight-gateway.pilotlight:9090", service="iris", targetConcurrency="10")
    engine = workload(
        scaling=keda(request, LATENCY, least=0, initial_cooldown_period=900), timeout_seconds=300,
        progress_deadline_seconds=900,
    )  # fmt: skip
    front = Activator("gateway", "pilotlight-gateway", "pilotlight", 8090)
    return service(engine, activator=front, gateway=GATEWAY, hosts=("iris.example.com",))


def raw_interceptor() -> Plan:
    """The HTTP add-on wakes it; Prometheus wants a token."""
    request = push(scalerAddress="keda-add-ons-http-external-scaler.keda:9090", interceptorRoute="iris-engine")
    asked = Trigger("prometheus", "p95", LATENCY.metadata, "Value", {"name": "iris-prometheus"})
    secret = {"secretTargetRef": [{"parameter": "bearerToken", "name": "prometheus", "key": "token"}]}
    route = {"scalingMetric": {"concurrency": {"targetValue": 10}}, "timeouts": {"readiness": "900s"}}
    front = Activator("interceptor", "keda-add-ons-http-interceptor-proxy", "keda", 8080, route)
    scaling = keda(request, asked, least=0, authentications={"iris-prometheus": secret})
    return service(workload(scaling=scaling), activator=front, gateway=GATEWAY, hosts=("iris.example.com",))


def multi_node() -> Plan:
    engine = workload(
        mode="multi-node", template=GPU, worker_template=GPU, group_size=2, scaling=hpa(1, 2), is_pilotlight=False,
        metrics_port=8080, disruption={"maxUnavailable": 1},
    )  # fmt: skip
    return service(engine)


def multi_node_ray() -> Plan:
    engine = workload(
        mode="multi-node", template=GPU, worker_template=GPU, group_size=3, cluster="ray", replicas=2,
        is_pilotlight=False, metrics_port=None,
    )  # fmt: skip
    return service(engine)


def disaggregated() -> Plan:
    """A router, a prefill engine that spans nodes, and decoders."""
    return service(
        workload("engine", "multi-node", template=GPU, group_size=2, scaling=keda(LATENCY)),
        workload("decoder", template=GPU, scaling=hpa(2, 8)),
        workload("router", scaling=hpa(1, 3), disruption={"minAvailable": 1}),
        entry="iris-router",
    )  # fmt: skip


def disaggregated_serverless_router() -> Plan:
    return service(
        workload("router", "serverless", scaling=KPA),
        workload("engine", template=GPU, scaling=hpa(), is_pilotlight=False),
        workload("decoder", template=GPU, scaling=hpa(2, 8), is_pilotlight=False),
    )


def disaggregated_discovery() -> Plan:
    """A router of others that finds its engines by the Kubernetes API."""
    return service(
        workload("engine", template=GPU, scaling=hpa(), is_pilotlight=False),
        workload("decoder", template=GPU, scaling=hpa(2, 8), is_pilotlight=False),
        workload("router", template=template(args=["--service-discovery"]), scaling=hpa(1, 3), is_pilotlight=False),
        entry="iris-router",
    )


def stateful() -> Plan:
    return service(workload(mode="stateful", replicas=1))


def stateful_exposed() -> Plan:
    return service(workload(mode="stateful", replicas=1), gateway={}, expose="LoadBalancer")


def stateful_routed() -> Plan:
    engine = workload(mode="stateful", replicas=3, disruption={"maxUnavailable": 1}, strategy={"type": "OnDelete"})
    return service(engine, gateway=GATEWAY, hosts=("iris.example.com",))


def serverless_access() -> Plan:
    """Its pods check tokens by the rules in a Secret."""
    file = {"name": "INFERENCE_ACCESS_FILE", "value": "/etc/pilotlight/access/access.json"}
    engine = workload(mode="serverless", scaling=KPA, enforces_access=True, template=template(env=[file]))
    rules = '{"rate": {"burst": 0, "requests": 100, "seconds": 60.0}, "tokens": ["' + "0a" * 32 + '"]}'
    return service(engine, annotations={names.ANNOTATION_TOKENS: "0a" * 32}, access_file=rules)


def raw_access_foreign() -> Plan:
    """An image of others that checks nothing: our gateway does, and the NetworkPolicy admits nobody else."""
    ports = [{"name": "http1", "containerPort": 8080}, {"name": "metrics", "containerPort": 9000}]
    engine = workload(template=template(ports=ports), scaling=hpa(), is_pilotlight=False, metrics_port=None)
    front = Activator("gateway", "pilotlight-gateway", "pilotlight", 8090)
    closed = {"annotations": {names.ANNOTATION_TOKENS: "0a" * 32}, "prometheus_namespace": "monitoring"}
    return service(engine, activator=front, gateway=GATEWAY, hosts=("iris.example.com",), monitoring=False, **closed)


PLANS = {
    made.__name__.replace("_", "-"): made
    for made in (
        serverless, serverless_canary, raw_latency, raw_hpa_foreign, raw_canary, raw_inference_pool, raw_from_zero,
        raw_interceptor,
        multi_node, multi_node_ray, disaggregated, disaggregated_serverless_router, disaggregated_discovery,
        stateful, stateful_exposed, stateful_routed, serverless_access, raw_access_foreign,
    )
}  # fmt: skip
