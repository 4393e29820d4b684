"""A bad and a good manifest for each KEDA rule."""

from tests.platform.lint.lint_cases import GUARDED, QUANTILE, Case, deployment, hpa, scaled

START = """
template:
  spec:
    containers:
    - {name: main, startupProbe: {periodSeconds: 10, failureThreshold: 90}}
"""
LATENCY = "{type: prometheus, metadata: {query: 'histogram_quantile(0.9, sum by (le) (rate(x_bucket[1m])))'}}"
PUSH = "{type: external-push, metadata: {scalerAddress: s}}"
CPU = "{type: cpu, metricType: Utilization, metadata: {value: '70'}}"


def trigger(body: str) -> str:
    return scaled("triggers:\n" + body)


def prometheus(query: str, more: str = "", spec: str = "") -> str:
    return scaled(f"{spec}triggers:\n- type: prometheus\n{more}  metadata:\n    query: {query}\n")


CASES: dict[str, Case] = {
    "PL400": Case(
        trigger("- type: prometheus\n  metadata:\n    query: sum(x)\n    activationTreshold: '1'  # PL400\n"),
        trigger("- {type: prometheus, metadata: {query: sum(x), activationThreshold: '1', authModes: bearer}}\n")
        + trigger("- {type: external-push, metadata: {scalerAddress: s, interceptorRoute: m}}\n"),
    ),
    "PL401": Case(
        trigger(
            "- type: prometheus\n  metadata:\n    metricName: x  # PL401\n    query: sum(x)\n"
            "- type: cpu\n  metadata:\n    type: Utilization  # PL401\n    value: '70'\n"
        ),
        trigger(f"- {CPU}\n"),
    ),
    "PL402": Case(
        trigger("- type: prometheus\n  metadata:\n    query: sum(x)\n    operator: LessThanOrEqual  # PL402\n"),
        trigger("- {type: external, metadata: {scalerAddress: s, operator: mine}}\n"),
    ),
    "PL403": Case(
        trigger("- type: prometheus\n  metadata:  # PL403\n    query: sum(x)\n- type: cron  # PL403\n"),
        trigger("- {type: prometheus, metadata: {query: sum(x), serverAddress: a, threshold: '1'}}\n"),
    ),
    "PL404": Case(
        trigger(
            "- type: prometheus\n  metadata:\n    threshold: 500ms  # PL404\n    activationThreshold: 5%  # PL404\n"
        ),
        trigger("- {type: prometheus, metadata: {threshold: '0.5', activationThreshold: '1e-3'}}\n"),
    ),
    "PL405": Case(
        trigger(
            "- type: prometheus\n  metadata:\n    threshold: 5  # PL405\n    ignoreNullValues: false  # PL405\n"
            "    query: sum(x)\n"
        ),
        trigger("- {type: prometheus, metadata: {threshold: '5', ignoreNullValues: 'false'}}\n"),
    ),
    "PL406": Case(
        trigger(
            f"- type: prometheus  # PL406\n  metadata: {{query: '{QUANTILE}'}}\n"
            "- type: prometheus\n  metricType: AverageValue  # PL406\n"
            "  metadata: {query: avg(DCGM_FI_DEV_GPU_UTIL)}\n"
        ),
        trigger(
            f"- {{type: prometheus, metricType: Value, metadata: {{query: '{QUANTILE}'}}}}\n"
            "- {type: prometheus, metadata: {query: 'sum(DCGM_FI_DEV_GPU_UTIL)'}}\n"
            "- {type: prometheus, metadata: {query: 'sum(rate(x_duration_seconds_count[1m]))'}}\n"
            "- {type: prometheus, metadata: {query: 'sum(rate(x_duration_seconds_sum[1m]))'}}\n"
        ),
    ),
    "PL407": Case(
        trigger(
            f"- type: prometheus\n  metadata:  # PL407\n    query: '{QUANTILE}'\n"
            f"- type: prometheus\n  metadata:\n    query: '{QUANTILE}'\n    ignoreNullValues: 'true'  # PL407\n"
        ),
        trigger(
            f"- {{type: prometheus, metadata: {{query: '{QUANTILE}', ignoreNullValues: 'false'}}}}\n"
            "- {type: prometheus, metadata: {query: sum(x_in_flight)}}\n"
        ),
    ),
    "PL408": Case(
        trigger(
            f"- type: prometheus\n  metadata:\n    query: '{QUANTILE} or vector(0)'  # PL408\n"
            "- type: prometheus\n  metadata:\n    query: sum(rate(x_sum[1m])) / sum(rate(x_count[1m]))  # PL408\n"
        ),
        prometheus(f"'{GUARDED}'") + prometheus("sum(rate(x_sum[1m])) / clamp_min(sum(rate(x_count[1m])), 1)")
        + prometheus("sum(x_bytes) / 1024"),
    ),
    "PL409": Case(
        prometheus(f"'{QUANTILE} >= 0 or vector(0)'  # PL409", spec="minReplicaCount: 1\n"),
        prometheus(f"'{GUARDED}'", spec="minReplicaCount: 1\n")
        + prometheus(f"'{QUANTILE} >= 0 or vector(0)'", spec="minReplicaCount: 0\n"),
    ),
    "PL410": Case(
        trigger("- type: prometheus\n  metadata:\n    query: sum by (pod) (x)  # PL410\n"),
        prometheus("sum(x)") + prometheus(f"'{GUARDED}'") + prometheus('sum by (job) (x{job="a"})')
        + prometheus("scalar(x)"),
    ),
    "PL411": Case(
        trigger(
            "- type: prometheus\n  metricType: Utilization  # PL411\n  metadata: {query: sum(x)}\n"
            "- type: cpu  # PL411\n  metadata: {value: '70'}\n"
        ),
        trigger(f"- {CPU}\n- {{type: prometheus, metricType: Value, metadata: {{query: sum(x)}}}}\n"),
    ),
    "PL412": Case(
        trigger("- name: a\n  type: cron\n- name: a  # PL412\n  type: cron\n"),
        trigger("- {name: a, type: cron}\n- {name: b, type: cron}\n- {type: cron}\n- {type: cron}\n"),
    ),
    "PL413": Case(
        scaled(f"scaleTargetRef: {{name: m}}\ntriggers:\n- {CPU}  # PL413\n")
        + deployment("template: {spec: {containers: [{name: main, resources: {requests: {memory: 1Gi}}}]}}\n"),
        scaled(f"scaleTargetRef: {{name: m}}\ntriggers:\n- {CPU}\n")
        + deployment("template: {spec: {containers: [{name: main, resources: {limits: {cpu: 1}}}]}}\n"),
    ),
    "PL414": Case(
        trigger("- type: cron\n  useCachedMetrics: true  # PL414\n"),
        trigger("- {type: prometheus, useCachedMetrics: true}\n- {type: cron, useCachedMetrics: false}\n"),
    ),
    "PL420": Case(
        scaled(f"triggers: [{PUSH}]\n").replace("spec:", "spec:  # PL420"),
        scaled(f"fallback: {{failureThreshold: 3, replicas: 1}}\ntriggers: [{PUSH}]\n")
        + scaled(f"triggers: [{CPU}]\n"),
    ),
    "PL421": Case(
        scaled(f"fallback: {{replicas: 1}}  # PL421\ntriggers: [{CPU}]\n"),
        scaled(f"fallback: {{replicas: 1}}\ntriggers: [{CPU}, {PUSH}]\n"),
    ),
    "PL422": Case(
        scaled("fallback: {replicas: 1}\nadvanced:\n  scalingModifiers:\n    target: '0.5'  # PL422\n"),
        scaled("fallback: {replicas: 1}\nadvanced: {scalingModifiers: {target: '500'}}\n")
        + scaled("advanced: {scalingModifiers: {target: '0.5'}}\n"),
    ),
    "PL423": Case(
        scaled(f"minReplicaCount: 0  # PL423\ntriggers: [{LATENCY}]\n")
        + scaled(f"triggers: [{LATENCY}]\n").replace("spec:", "spec:  # PL423"),
        scaled(f"minReplicaCount: 0\ntriggers: [{LATENCY}, {PUSH}]\n")
        + scaled(f"minReplicaCount: 1\ntriggers: [{LATENCY}]\n"),
    ),
    "PL424": Case(
        scaled(f"minReplicaCount: 0  # PL424\ntriggers: [{CPU}]\n"),
        scaled(f"minReplicaCount: 1\ntriggers: [{CPU}]\n") + scaled(f"triggers: [{CPU}, {PUSH}]\n"),
    ),
    "PL425": Case(
        scaled("minReplicaCount: 2\nidleReplicaCount: 1  # PL425\n") + scaled("idleReplicaCount: 0  # PL425\n"),
        scaled("minReplicaCount: 2\nidleReplicaCount: 0\n"),
    ),
    "PL426": Case(
        scaled("minReplicaCount: 5  # PL426\nmaxReplicaCount: 2\n") + scaled("minReplicaCount: 101  # PL426\n")
        + hpa("minReplicas: 3  # PL426\nmaxReplicas: 2\n"),
        scaled("minReplicaCount: 2\nmaxReplicaCount: 2\n") + hpa("minReplicas: 1\nmaxReplicas: 2\n"),
    ),
    "PL427": Case(
        scaled("scaleTargetRef: {name: m}\ncooldownPeriod: 60  # PL427\n") + deployment(START),
        scaled("scaleTargetRef: {name: m}\ncooldownPeriod: 1000\n") + deployment(START)
        + scaled("scaleTargetRef: {name: other}\ncooldownPeriod: 60\n"),
    ),
    "PL428": Case(
        scaled("maxReplicaCount: 1\n").replace("spec:", "spec:  # PL428")
        + scaled("scaleTargetRef: {name: m}\ninitialCooldownPeriod: 60  # PL428\n") + deployment(START),
        scaled("scaleTargetRef: {name: m}\ninitialCooldownPeriod: 900\n") + deployment(START)
        + scaled("minReplicaCount: 1\n"),
    ),
    "PL429": Case(
        scaled("pollingInterval: 1  # PL429\n") + scaled("pollingInterval: 300  # PL429\n"),
        scaled("pollingInterval: 15\n") + scaled(f"pollingInterval: 300\ntriggers: [{PUSH}]\n"),
    ),
    "PL430": Case(
        scaled("minReplicaCount: 1\ncooldownPeriod: 60  # PL430\npollingInterval: 15  # PL430\n"),
        scaled("minReplicaCount: 0\ncooldownPeriod: 60\npollingInterval: 15\n")
        + scaled("minReplicaCount: 1\npollingInterval: 15\ntriggers: [{type: kafka, useCachedMetrics: true}]\n"),
    ),
    "PL431": Case(
        "kind: ScaledObject\nmetadata:\n  annotations:\n    autoscaling.keda.sh/paused-replicas: '0'  # PL431\n"
        "    autoscaling.keda.sh/paused: 'true'  # PL431\n",
        "kind: ScaledObject\nmetadata: {annotations: {autoscaling.keda.sh/paused: 'false'}}\n",
    ),
    "PL432": Case(
        scaled("minReplicaCount: 1\n").replace("spec:", "spec:  # PL432"),
        scaled("maxReplicaCount: 4\n"),
    ),
    "PL433": Case(
        scaled(f"triggers:\n- {LATENCY}  # PL433\n"),
        scaled(
            "advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleUp: {policies: [{type: Pods, value: 1}]}}}}\n"
            f"triggers: [{LATENCY}]\n"
        )
        + scaled(f"triggers: [{PUSH}]\n"),
    ),
    "PL434": Case(
        "apiVersion: http.keda.sh/v1alpha1\nkind: HTTPScaledObject  # PL434\nmetadata: {name: m}\n",
        "apiVersion: http.keda.sh/v1beta1\nkind: InterceptorRoute\nmetadata: {name: m}\n",
    ),
    "PL435": Case(
        scaled("scaleTargetRef: {name: m}\n") + hpa("scaleTargetRef: {kind: Deployment, name: m}  # PL435\n"),
        scaled("scaleTargetRef: {name: m}\n") + hpa("scaleTargetRef: {kind: StatefulSet, name: m}\n")
        + hpa("scaleTargetRef: {kind: Deployment, name: m}\n").replace(
            "{name: m}", "{name: m, namespace: elsewhere}", 1
        ),
    ),
    "PL436": Case(
        scaled("scaleTargetRef: {name: m}\n") + scaled("scaleTargetRef: {kind: Deployment, name: m}  # PL436\n", "two"),
        scaled("scaleTargetRef: {name: m}\n") + scaled("scaleTargetRef: {name: two}\n", "two"),
    ),
    "PL437": Case(
        scaled(
            "advanced:\n  scalingModifiers:\n    formula: max(p95, queue)  # PL437\n    target: '1'\n"
            "triggers: [{name: p95, type: prometheus}, {type: prometheus}]\n"
        ),
        scaled(
            "advanced: {scalingModifiers: {formula: 'p95 > 1.5e3 ? float(queue) : 0', target: '1'}}\n"
            "triggers: [{name: p95, type: prometheus}, {name: queue, type: prometheus}]\n"
        ),
    ),
    "PL438": Case(
        "kind: ScaledObject\nmetadata:\n  name: " + "m" * 55 + "  # PL438\n",
        scaled("maxReplicaCount: 1\n", "m" * 54)
        + scaled("advanced: {horizontalPodAutoscalerConfig: {name: short}}\n", "m" * 60),
    ),
}  # fmt: skip
