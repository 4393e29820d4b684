"""A bad and a good manifest for each rule about workloads and their resources."""

from tests.platform.lint.lint_cases import Case, container, deployment, hpa, revision, scaled

READY = "{httpGet: {path: /v2/health/ready}}"
TOKENS = "pilotlight.dev/auth-tokens-sha256: '00'"
GPUS = "limits: {nvidia.com/gpu: 1}"
BUDGET = """---
kind: PodDisruptionBudget
metadata: {name: m}
spec: {selector: {matchLabels: {app: m}}}
"""
BASE_MODEL = """---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: llama}
spec: {modelParameterSize: 8B}
"""


def labelled(memory: str) -> str:
    return deployment(
        "template:\n  metadata: {labels: {ome.io/base-model-name: llama}}\n  spec:\n    containers:\n"
        f"    - resources:\n        limits:\n          memory: {memory}\n"
    )


CASES: dict[str, Case] = {
    "PL479": Case(
        "kind: Anything\nmetadata:\n  annotations:\n    a.b/c: 0  # PL479\n  labels:\n    d: true  # PL479\n",
        "kind: Anything\nmetadata: {annotations: {a.b/c: '0'}, labels: {d: 'true'}}\n",
    ),
    "PL480": Case(
        deployment("replicas: 2  # PL480\n") + scaled("scaleTargetRef: {name: m}\n"),
        deployment("template: {}\n") + deployment("replicas: 2\n", "other")
        + hpa("scaleTargetRef: {kind: Deployment, name: m}\n"),
    ),
    "PL481": Case(
        container(f"readinessProbe: {READY}\nlivenessProbe: {READY}  # PL481"),
        container(f"readinessProbe: {READY}\nlivenessProbe: {{httpGet: {{path: /v2/health/live}}}}"),
    ),
    "PL482": Case(
        container(
            "resources:\n  limits: {amd.com/gpu: 1}\n  requests:\n"
            "    nvidia.com/gpu: 1  # PL482\n    amd.com/gpu: 2  # PL482"
        ),
        container("resources: {requests: {nvidia.com/gpu: '1', cpu: 1}, limits: {nvidia.com/gpu: 1}}"),
    ),
    "PL483": Case(
        labelled("16Gi  # PL483") + BASE_MODEL + labelled("1Gi  # PL483").replace("name: m", "name: told", 1),
        labelled("32Gi") + BASE_MODEL + container("resources: {limits: {memory: 1Mi}}"),
        {"told": 2**30},
    ),
    "PL484": Case(
        deployment("template:\n  spec:\n    containers:\n    - image: vllm/vllm-openai:v0.9  # PL484\n"),
        container(f"image: vllm/vllm-openai\nresources: {{{GPUS}}}") + container("image: vllm/vllm-cpu:v1")
        + container("image: nginx"),
    ),
    "PL485": Case(
        container("resources:\n  limits: {nvidia.com/gpu: 2}\n  requests:\n    cpu: 500m  # PL485"),
        container(f"resources: {{requests: {{cpu: 4}}, {GPUS}}}") + container("resources: {requests: {cpu: 10m}}"),
    ),
    "PL486": Case(
        "kind: Deployment\nmetadata:\n  name: m  # PL486\nspec:\n  replicas: 3\n",
        deployment("replicas: 3\ntemplate: {metadata: {labels: {app: m, b: c}}}\n") + BUDGET
        + deployment("replicas: 1\n", "one") + deployment("template: {}\n", "two"),
    ),
    "PL487": Case(
        deployment(
            "progressDeadlineSeconds: 300  # PL487\n"
            "template: {spec: {containers: [{startupProbe: {periodSeconds: 10, failureThreshold: 60}}]}}\n"
        ),
        container("startupProbe: {periodSeconds: 10, failureThreshold: 60}"),
    ),
    "PL488": Case(
        container(f"resources: {{{GPUS}}}").replace("spec:", "spec:  # PL488", 1),
        deployment(f"strategy: {{type: Recreate}}\ntemplate: {{spec: {{containers: [{{resources: {{{GPUS}}}}}]}}}}\n")
        + deployment(
            "strategy: {rollingUpdate: {maxSurge: 0}}\n"
            f"template: {{spec: {{containers: [{{resources: {{{GPUS}}}}}]}}}}\n"
        ),
    ),
    "PL489": Case(
        deployment("template:\n  spec:\n    containers:\n    - image: vllm  # PL489\n"),
        container(f"image: vllm\nreadinessProbe: {READY}") + revision("image: vllm") + container("image: nginx"),
    ),
    "PL490": Case(
        container("args: [--model=/mnt/models]\nlivenessProbe: {httpGet: {path: /ready}}  # PL490"),
        container("image: vllm\nlivenessProbe: {httpGet: {path: /ready}}\nstartupProbe: {httpGet: {path: /ready}}")
        + container("image: vllm\nlivenessProbe: {httpGet: {path: /v2/health/live}}")
        + container("image: vllm\nlivenessProbe: {tcpSocket: {port: 1}, initialDelaySeconds: 300}")
        + container("image: nginx\nlivenessProbe: {httpGet: {path: /ready}}"),
    ),
    "PL491": Case(hpa("minReplicas: 0  # PL491\n"), hpa("minReplicas: 1\n")),
    "PL493": Case(
        f"kind: Deployment\nmetadata:\n  name: m\n  annotations:\n    {TOKENS}  # PL493\n"
        "spec: {template: {metadata: {labels: {app: m}}, spec: {containers: [{image: vllm}]}}}\n---\n"
        "kind: NetworkPolicy\nmetadata: {name: m}\nspec:\n  podSelector: {matchLabels: {app: m}}\n"
        "  ingress: [{from: [{podSelector: {}}]}, {ports: [{port: 8080}]}]\n---\n"
        "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: k\n  annotations:\n"
        f"    {TOKENS}  # PL493\nspec: {{template: {{spec: {{containers: [{{image: vllm}}]}}}}}}\n---\n"
        f"kind: InferenceService\nmetadata:\n  name: i\n  annotations:\n    {TOKENS}  # PL493\n"
        "spec: {predictor: {containers: [{image: vllm}]}}\n",
        f"kind: Deployment\nmetadata: {{name: m, annotations: {{{TOKENS}}}}}\n"
        "spec: {template: {metadata: {labels: {app: m}}, spec: {containers: [{image: vllm}]}}}\n---\n"
        "kind: NetworkPolicy\nmetadata: {name: m}\n"
        "spec: {podSelector: {matchLabels: {app: m}}, ingress: [{from: [{podSelector: {}}]}]}\n---\n"
        f"kind: LeaderWorkerSet\nmetadata: {{name: l, annotations: {{{TOKENS}}}}}\n"
        "spec: {leaderWorkerTemplate: {leaderTemplate: {spec: {containers: [{image: vllm, ports: [{name: metrics, "
        "containerPort: 9000}]}]}}}}\n---\n"
        "kind: NetworkPolicy\nmetadata: {name: l}\nspec:\n"
        "  podSelector: {matchLabels: {leaderworkerset.sigs.k8s.io/name: l}}\n"
        "  ingress: [{from: [{podSelector: {}}]}, {ports: [{port: 9000}]}]\n---\n"
        "apiVersion: serving.knative.dev/v1\nkind: Service\n"
        f"metadata: {{name: k, annotations: {{{TOKENS}}}}}\n"
        "spec: {template: {spec: {containers: [{env: [{name: INFERENCE_ACCESS_FILE, value: /a}]}]}}}\n---\n"
        "kind: InferenceService\n"
        f"metadata: {{name: i, annotations: {{{TOKENS}, serving.kserve.io/deploymentMode: Standard}}}}\n"
        "spec: {predictor: {containers: [{image: vllm}]}}\n---\n"
        f"kind: InferenceService\nmetadata: {{name: i, annotations: {{{TOKENS}}}}}\n"
        "spec: {predictor: {model: {modelFormat: {name: onnx}}}}\n",
    ),
    "PL492": Case(
        deployment("template:\n  spec:\n    containers:\n    - resources: {limits: {nvidia.com/gpu: 2}}  # PL492\n"),
        container("resources: {limits: {nvidia.com/gpu: 2}}\nvolumeMounts: [{name: shm, mountPath: /dev/shm}]")
        + container(f"resources: {{{GPUS}}}"),
    ),
}  # fmt: skip
