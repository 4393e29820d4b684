"""Helm against the real cluster, as a person would use it, and the question what it has left behind."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.real_cluster import Cluster
from tests.judges import helm as judge

CHARTS: Final = Path(__file__).parents[2] / "helm"
# What a test of ours needs of a model: it is in the image.
MODEL: Final = "file:///models/iris/model.onnx"
SMALL: Final = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}
SYSTEM: Final = "pilotlight-system"  # where documents are planned to find the gateway
# Listed nowhere by labels, or made of others and gone with them.
PASSING: Final = ("events", "metrics.k8s.io")


@dataclass(frozen=True, slots=True)
class Helm:
    """One namespace of one cluster."""

    program: str
    cluster: Cluster
    namespace: str

    def run(self, *words: str, values: Any = None) -> subprocess.CompletedProcess[str]:
        command = [self.program, *words, "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace]
        given = [] if values is None else ["--values", "-"]
        text = None if values is None else json.dumps(values)
        return subprocess.run([*command, *given], input=text, capture_output=True, text=True, check=False, timeout=300)

    def __call__(self, *words: str, values: Any = None) -> str:
        done = self.run(*words, values=values)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr.strip()}"
        return done.stdout

    def install(self, name: str, chart: str, values: Any) -> str:
        return self("install", name, str(CHARTS / chart), values=values)

    def upgrade(self, name: str, chart: str, values: Any) -> str:
        return self("upgrade", name, str(CHARTS / chart), values=values)


def find_helm(cluster: Cluster, namespace: str) -> Helm:
    beside = os.pathsep.join((str(Path(cluster.kubectl_path).parent), os.environ.get("PATH", "")))
    return Helm(shutil.which("helm", path=beside) or judge.helm(), cluster, namespace)


def require_gateway(cluster: Cluster) -> None:
    """Wait for the gateway. Installed where it is not, and left there, under a name and with roles of its own, so that
    the chart fits a second time beside it."""
    if cluster.get("deployment", "pilotlight-gateway", "-n", SYSTEM) is None:
        cluster.kubectl("create", "namespace", SYSTEM, check=False)
        values = {"roles": {"deployer": "gateway-deployer", "viewer": "gateway-viewer"}}
        find_helm(cluster, SYSTEM).install("gateway", "inference-platform", values)
    cluster.kubectl("rollout", "status", "deployment/pilotlight-gateway", "-n", SYSTEM, "--timeout=120s")


def left_behind(cluster: Cluster, selector: str, *place: str) -> list[str]:
    """Every object of any kind that has these labels, by `kind/name`; those that are about to go do not count."""
    words = ("api-resources", "--verbs=list", "--output=name")
    kinds = cluster.kubectl(*words, check=False).split()  # an API that another program serves may be away for a moment
    wanted = ",".join(kind for kind in kinds if not any(word in kind for word in PASSING))
    said = cluster.kubectl("get", wanted, "-l", selector, "--ignore-not-found", "--output=json", *place)
    items = json.loads(said)["items"] if said.strip() else []
    return [
        f"{each['kind']}/{each['metadata']['name']}" for each in items if "deletionTimestamp" not in each["metadata"]
    ]
