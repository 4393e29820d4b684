"""Microservices over HTTP on a real cluster: by `platformctl api` here, and by the chart's own API in a pod."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.cluster.bed.predictor_image import PLATFORM
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import SMALL, find_helm
from tests.cluster.test_microservices import MODEL, left
from tests.embedded import FLOWER
from tests.http_reply import Reply
from tests.platform.microservices.api.test_curl import workflow

READY_S = 240.0
SMALL_POD = {"PILOTLIGHT_API_OPTION_CPU": "50m", "PILOTLIGHT_API_OPTION_MEMORY": "512Mi"}


@dataclass
class Api:
    """An org of it is a namespace."""

    port: int
    org: str
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        reply = self.ask(method, path, body)
        assert reply.status == 200, reply.body
        return reply.json()

    def login(self, key: str) -> None:
        self.token = self.ok("POST", "/login", {"ngc_key": key, "ngc_org_name": self.org})["token"]


def story(api: Api, cluster: Cluster, experiment: str, parent: str) -> None:
    """Start, wait, ask, stop; a StatefulSet in the org's namespace, and nothing of it afterwards."""
    at = f"/orgs/{api.org}/experiments/{experiment}"
    job = api.ok("POST", f"{at}/inference_microservice/start", {"parent_id": parent})["job_id"]
    service = f"{at}/jobs/{job}/inference_microservice"
    seen: set[str] = set()

    def loaded() -> bool:
        told = api.ok("GET", f"{service}/status")
        assert told["status"] != "error", told
        reply = api.ask("POST", f"{service}/inference", FLOWER)
        assert reply.status in (200, 202), reply.body
        seen.add(reply.json()["status"])
        return bool(told["model_loaded"])

    seconds_until(loaded, "the model is loaded", READY_S)
    told = api.ok("GET", f"{service}/status")
    assert (told["status"], told["pod_status"]) == ("healthy", "Running")
    assert f"Pod/{told['pod_name']}" in left(cluster, api.org, job)
    assert "initializing" in seen
    service_type = cluster.get("service", f"ims-{job}", "-n", api.org)["spec"]["type"]
    assert service_type == "ClusterIP", "clients go through the API"
    answer = api.ok("POST", f"{service}/inference", FLOWER)
    assert (answer["status"], answer["job_id"]) == ("completed", job)
    assert answer["results"]["outputs"]
    assert api.ok("POST", f"{service}/stop")["status"] == "stopped"
    assert api.ask("GET", f"{service}/status").status == 404
    seconds_until(lambda: left(cluster, api.org, job) == [], "nothing of it is left", 120)


def control(cluster: Cluster, home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "platformctl", *words],
        env=_environment(cluster, home), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _environment(cluster: Cluster, home: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PILOTLIGHT_")}
    own = {
        "KUBECONFIG": str(cluster.kubeconfig), "PILOTLIGHT_HOME": str(home), "PILOTLIGHT_API_OPTION_ADDRESS_WAIT": "0",
        "PILOTLIGHT_MICROSERVICE_REGISTRY": str(home / "registry.json"),
    }  # fmt: skip
    return {**clean, **own, **SMALL_POD}


@contextmanager
def serving(cluster: Cluster, home: Path) -> Iterator[int]:
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "platformctl", "api", "--target", "kubernetes", "--port", "0"]
    with (home / "api.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=_environment(cluster, home), stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, (home / "api.log").read_text()
        yield int(address.rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


REGISTER = ("--network-arch", "pilotlight", "--artifact", MODEL, "--force", "-o", "json")  # a path of the pod's


def test_a_microservice_lives_on_a_cluster_over_http(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    key = control(cluster, home, "api", "key", "create", namespace)
    made = json.loads(control(cluster, home, "microservice", "register", namespace, *REGISTER))
    with serving(cluster, home) as port:
        api = Api(port, namespace)
        api.login(key)
        story(api, cluster, made["experiment_id"], made["job_id"])


def test_the_guides_workflow_with_curl(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    home, flower = tmp_path / "home", json.dumps(FLOWER)
    key = control(cluster, home, "api", "key", "create", namespace)
    made = json.loads(control(cluster, home, "microservice", "register", namespace, *REGISTER))
    with serving(cluster, home) as port:
        url = f"http://127.0.0.1:{port}/api/v1"
        told = workflow(url, namespace, key, made["experiment_id"], made["job_id"], tmp_path, flower, flower)
    assert told["first"]["status"] == told["second"]["status"] == "completed"
    assert (told["stopped"]["status"], told["code"]) == ("stopped", "404")
    seconds_until(lambda: left(cluster, namespace, told["stopped"]["job_id"]) == [], "nothing of it is left", 120)


def test_a_pod_that_cannot_be_had_is_told_and_the_api_may_end_meanwhile(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    key = control(cluster, home, "api", "key", "create", namespace)
    register = ("--network-arch", "pilotlight", "--artifact", "/models/nothing.onnx", "--force", "-o", "json")
    made = json.loads(control(cluster, home, "microservice", "register", namespace, *register))
    at = f"/orgs/{namespace}/experiments/{made['experiment_id']}"
    api = Api(0, namespace)
    with serving(cluster, home) as api.port:
        api.login(key)
        job = api.ok("POST", f"{at}/inference_microservice/start", {"parent_id": made["job_id"]})["job_id"]
    service = f"{at}/jobs/{job}/inference_microservice"
    with serving(cluster, home) as api.port:
        seconds_until(lambda: api.ok("GET", f"{service}/status")["status"] == "error", "its failure is told", READY_S)
        told = api.ok("GET", f"{service}/status")
        assert "nothing.onnx" in (told["initialization_error"] or told["model_load_error"])
        assert "missing_file" in [each["name"] for each in told["diagnosis"]]
        assert api.ask("POST", f"{service}/inference", FLOWER).status == 503
        assert api.ok("POST", f"{service}/stop")["status"] == "stopped"
    seconds_until(lambda: left(cluster, namespace, job) == [], "nothing of it is left", 120)


@contextmanager
def forwarded(cluster: Cluster, namespace: str, target: str, port: int) -> Iterator[int]:
    command = [cluster.kubectl_path, f"--kubeconfig={cluster.kubeconfig}", "-n", namespace, "port-forward", target]
    process = subprocess.Popen([*command, f":{port}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "Forwarding from" in line, line
        yield int(line.split("->")[0].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_the_charts_own_api_does_the_same_in_a_pod(cluster: Cluster, namespace: str) -> None:
    """In a namespace of its own under the restricted standard; rights only where the org is."""
    at = cluster.new_namespace("microservice-api")
    helm = find_helm(cluster, at)
    values = {
        "gateway": {"enabled": False}, "roles": {"deployer": f"{at}-deployer", "viewer": f"{at}-viewer"},
        "api": {
            "enabled": True, "image": PLATFORM, "imagePullPolicy": "Never", "namespaces": [namespace],
            "storage": {"enabled": False}, "options": {"cpu": "50m", "memory": "512Mi"}, "resources": SMALL,
        },
    }  # fmt: skip
    try:
        helm.install("platform", "inference-platform", values)
        cluster.kubectl("-n", at, "rollout", "status", "deployment/pilotlight-api", "--timeout=170s")

        def inside(*words: str) -> str:
            command = ("exec", "deployment/pilotlight-api", "--", "python", "-m", "platformctl", *words)
            return cluster.kubectl("-n", at, *command).strip()

        key = inside("api", "key", "create", namespace)
        made = json.loads(inside("microservice", "register", namespace, *REGISTER))
        with forwarded(cluster, at, "service/pilotlight-api", 8091) as port:
            api = Api(port, namespace)
            api.login(key)
            story(api, cluster, made["experiment_id"], made["job_id"])
    finally:
        helm.run("uninstall", "platform", "--wait")
        cluster.kubectl("delete", "namespace", at, "--wait=false")
