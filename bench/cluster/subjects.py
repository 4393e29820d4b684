"""The three servers whose cold starts are compared: ours, KServe's, and one that does nothing.

Each is a Knative service of the same window and requests, so that they differ in what runs in the pod alone.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.real_cluster import Cluster

from bench.cluster.images import HELLO, KSERVE
from bench.load import BenchError
from bench.models import IRIS_ROW

Json = Any
OURS: Final = "pilotlight"
PEER: Final = "kserve"
STATIC: Final = "static"
BODY: Final = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": list(IRIS_ROW)}]})
WINDOW: Final = {"autoscaling.knative.dev/window": "6s"}
REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}
READY_S: Final = 180
DOCUMENT: Final[Mapping[str, Json]] = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "iris", "annotations": {"serving.kserve.io/deploymentMode": "Serverless", **WINDOW}},
    "spec": {
        "predictor": {
            "minReplicas": 0,
            "maxReplicas": 1,
            "model": {
                "modelFormat": {"name": "onnx"},
                "protocolVersion": "v2",
                "storageUri": "file:///models/iris/model.onnx",
                "resources": {"requests": REQUESTS, "limits": {"memory": "1Gi"}},
            },
        }
    },
}
SAFE: Final = {
    "allowPrivilegeEscalation": False, "runAsNonRoot": True, "readOnlyRootFilesystem": True, "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """`service` is its Knative service; `ready` what its log says once it can answer."""

    name: str
    title: str
    service: str
    container: str
    path: str
    body: str | None
    ready: re.Pattern[str]


SUBJECTS: Final = (
    Subject(OURS, "Pilotlight", "iris-predictor", "kserve-container", "/v2/models/iris/infer", BODY,
            re.compile(r'"event":"ready"')),
    Subject(PEER, "KServe", "kserve", "server", "/v2/models/iris/infer", BODY, re.compile("Uvicorn running")),
    Subject(STATIC, "static server", "static", "server", "/", None, re.compile("listening on")),
)  # fmt: skip


def deploy(cluster: Cluster, namespace: str, subject: Subject) -> None:
    """Until it is ready; ours as a person would deploy it."""
    if subject.name == OURS:
        deploy_documents(cluster, namespace, DOCUMENT)
        return
    image = KSERVE if subject.name == PEER else HELLO
    cluster.apply(knative_service(subject, image), namespace=namespace)
    wait = ("wait", f"ksvc/{subject.service}", "--for=condition=Ready", f"--timeout={READY_S}s")
    cluster.kubectl("-n", namespace, *wait)


def deploy_documents(cluster: Cluster, namespace: str, *documents: Mapping[str, Json]) -> str:
    """By platformctl, until they are ready; the host that answers."""
    text = "\n---\n".join(map(json.dumps, documents))
    done = cluster.platformctl(namespace, "deploy", "-f", "-", text=text)
    if done.returncode:
        raise BenchError(f"platformctl deploy ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout.strip().removeprefix("http://")


def knative_service(subject: Subject, image: str) -> dict[str, Json]:
    """As KServe's controller leaves it to Knative: no probe but Knative's own, which asks for an open port."""
    container = {
        "name": subject.container, "image": image, "ports": [{"containerPort": 8080}], "securityContext": SAFE,
        "resources": {"requests": REQUESTS, "limits": {"memory": "1Gi"}},
    }  # fmt: skip
    pod = {"containers": [container], "enableServiceLinks": False, "automountServiceAccountToken": False}
    notes = {**WINDOW, "autoscaling.knative.dev/max-scale": "1"}
    return {
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": subject.service},
        "spec": {"template": {"metadata": {"annotations": notes}, "spec": pod}},
    }  # fmt: skip
