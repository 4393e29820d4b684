"""What the stories on a real cluster have in common: documents, platformctl that must succeed, statuses, counts."""

import json
import re
import subprocess
from collections import Counter
from typing import Any, Final

from tests.cluster.real_cluster import Cluster, seconds_until

Json = Any
COUNTED: Final = re.compile(r"^pilotlight_request_duration_seconds_count\{(.*)\} (\d+)", re.MULTILINE)
DOCUMENT: Final = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    serving.kserve.io/deploymentMode: {mode}
    serving.kserve.io/autoscalerClass: {scaler}
    prometheus.io/scrape: "true"
    prometheus.io/port: "8082"{annotations}
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: {most}
    model:
      modelFormat: {{name: onnx}}
      protocolVersion: v2
      storageUri: {uri}
      resources:
        requests: {{cpu: 50m, memory: 128Mi}}
        limits: {{memory: {memory}}}
"""
MODEL: Final = "file:///models/iris/model.onnx"
PHASE: Final = re.compile(r'^pilotlight_cold_start_seconds\{.*phase="(\w+)".*\} \d', re.MULTILINE)


def document(
    name: str, *, mode: str = "Serverless", scaler: str = "hpa", annotations: tuple[str, ...] = (), least: int = 0,
    most: int = 3, uri: str = MODEL, memory: str = "512Mi",
) -> str:  # fmt: skip
    """Another `memory` is another revision."""
    written = "".join(f"\n    {each}" for each in annotations)
    return DOCUMENT.format(
        name=name, mode=mode, scaler=scaler, annotations=written, least=least, most=most, uri=uri, memory=memory
    )


class Story:
    """One service of one namespace, as a person lives with it."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def run(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.cluster.platformctl(self.namespace, *words, text=text)

    def do(self, *words: str, text: str | None = None) -> str:
        """Must succeed; what it says on stdout."""
        done = self.run(*words, text=text)
        assert done.returncode == 0, f"platformctl {' '.join(words)}:\n{done.stderr}"
        return done.stdout.strip()

    def deploy(self, text: str, *words: str) -> str:
        return self.do("deploy", "-f", "-", *words, text=text)

    def status(self) -> Json:
        return json.loads(self.do("status", self.name, "-o", "json"))

    def shares(self) -> dict[str, int]:
        return {row["name"]: row["percent"] for row in self.status()["revisions"] if row["percent"]}

    def pods(self) -> list[Json]:
        found = self.cluster.get("pods", "-n", self.namespace, "-l", f"pilotlight.dev/service={self.name}")
        return [each for each in (found or {"items": ()})["items"] if "deletionTimestamp" not in each["metadata"]]

    def answered(self) -> Counter[tuple[str, str]]:
        """Requests answered by each revision, as each of its pods counts them; one that ends takes its count along."""
        counts: Counter[tuple[str, str]] = Counter()
        for pod in self.pods():
            for labels, value in COUNTED.findall(self._metrics(pod)):
                revision = re.search(r'revision="([^"]*)"', labels)
                assert revision
                counts[revision[1], pod["metadata"]["name"]] += int(value)
        return counts

    def phases(self) -> set[str]:
        """Of the starts of its pods, as these tell them."""
        return {phase for pod in self.pods() for phase in PHASE.findall(self._metrics(pod))}

    def _metrics(self, pod: Json) -> str:
        where = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}:8082/proxy/metrics"
        return self.cluster.kubectl("get", "--raw", where)

    def left(self) -> list[str]:
        """Objects of any kind that are still there with the service's label, or were kept for it."""
        words = ("api-resources", "--verbs=list", "--namespaced", "-o", "name")
        kinds = self.cluster.kubectl(*words, check=False).split()  # KEDA's metrics may be away for a moment
        wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
        selector = f"pilotlight.dev/service={self.name}"
        words = ("get", wanted, "-n", self.namespace, "-l", selector, "-o", "name", "--ignore-not-found")
        return self.cluster.kubectl(*words).split()

    def wait_gone(self) -> None:
        """What belongs to an object that was deleted is collected by the cluster a moment later."""
        seconds_until(lambda: self.left() == [], lambda: f"nothing of {self.name} is left: {self.left()}")
