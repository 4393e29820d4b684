"""A real cluster as the tests see it: kubectl, platformctl, and questions through its ingresses.

It is the bed of this folder, or whatever KUBECONFIG names: kind and k3s do as well, once they have Knative and KEDA.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.cluster.bed.places import DOMAIN, GATEWAY_IP, INGRESS_IP, places
from tests.cluster.bed.processes import alive
from tests.eventually import eventually as poll
from tests.http_reply import Reply

Json = Any
RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Cluster:
    """`ingress` is where Knative's services answer, `gateway` where those of the Gateway API do."""

    kubeconfig: Path
    kubectl_path: str
    ingress: str
    gateway: str
    domain: str

    def kubectl(self, *words: str, text: str | None = None, check: bool = True) -> str:
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.strip()}"
        return done.stdout

    def get(self, *words: str) -> Json:
        """One object or a list; None where there is no such object."""
        said = self.kubectl("get", *words, "--ignore-not-found", "--output=json")
        return json.loads(said) if said.strip() else None

    def apply(self, *objects: Mapping[str, Json], namespace: str = "") -> None:
        text = "---\n".join(json.dumps(each) + "\n" for each in objects)
        place = (f"--namespace={namespace}",) if namespace else ()
        self.kubectl("apply", "--server-side", "--force-conflicts", *place, "-f", "-", text=text)

    def new_namespace(self, stem: str) -> str:
        """Under Pod Security `restricted`: what runs there runs anywhere."""
        name = f"{stem[:40].replace('_', '-').lower()}-{secrets.token_hex(3)}"
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
        return name

    def platformctl(
        self, namespace: str, *words: str, text: str | None = None, target: str = "kubernetes",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """The command line as a person would use it; its exit code is the test's to judge."""
        own = {"KUBECONFIG": str(self.kubeconfig), "PILOTLIGHT_TARGET": target, "PILOTLIGHT_NAMESPACE": namespace}
        command = [str(Path(sys.executable).parent / "platformctl"), *words]
        return subprocess.run(
            command, env={**os.environ, **own}, input=text, capture_output=True, text=True, check=False, timeout=300,
            cwd=cwd,
        )  # fmt: skip

    def ask(
        self, host: str, path: str = "/", body: Json = None, *, method: str = "",
        headers: Mapping[str, str] | None = None, through: str = "", timeout: float = 60.0,
    ) -> Reply:  # fmt: skip
        """One request for `host` through the ingress; a body that is neither text nor bytes goes as JSON."""
        place = urlsplit(through or self.ingress)
        assert place.hostname, "say where the cluster answers: PILOTLIGHT_CLUSTER_INGRESS, PILOTLIGHT_CLUSTER_GATEWAY"
        sent = body if body is None or isinstance(body, str | bytes) else json.dumps(body)
        connection = HTTPConnection(place.hostname, place.port or 80, timeout=timeout)
        try:
            connection.request(
                method or ("GET" if body is None else "POST"), path, sent, {"Host": host, **(headers or {})}
            )
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()


def seconds_until(holds: Callable[[], bool], what: str | Callable[[], str], seconds: float = 180.0) -> float:
    """Polls until it holds; how long that took."""
    begin = time.monotonic()
    poll(holds, what, seconds, pause_s=POLL_SECONDS)
    return time.monotonic() - begin


def find_cluster(environment: Mapping[str, str]) -> Cluster | str:
    """The cluster of KUBECONFIG, or the bed when it runs; else a sentence that says why there is none."""
    bed = places(environment)
    named = environment.get("KUBECONFIG", "")
    if not named and not alive(bed, "kube-apiserver"):
        return "no cluster: run make cluster-up, or name one with KUBECONFIG=…"
    kubeconfig = Path(named or bed.kubeconfig)
    kubectl = str(bed.kubectl) if bed.kubectl.exists() else shutil.which("kubectl")
    if kubectl is None:
        return "no kubectl on the PATH to ask the cluster of KUBECONFIG with"
    own = kubeconfig == bed.kubeconfig
    return Cluster(
        kubeconfig, kubectl,
        environment.get("PILOTLIGHT_CLUSTER_INGRESS") or (f"http://{INGRESS_IP}" if own else ""),
        environment.get("PILOTLIGHT_CLUSTER_GATEWAY") or (f"http://{GATEWAY_IP}" if own else ""),
        environment.get("PILOTLIGHT_CLUSTER_DOMAIN") or DOMAIN,
    )  # fmt: skip
