"""Services of others on a real platform: a microservice with its own port and a secret in memory; a sandbox."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import FLOWER, IRIS, PATIENCE_S, Platform
from tests.ports import free_port

from pilotlight.microservices.registry.container_command import CommandInputs, build, parse
from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.wire.http_client import HttpClient

KEY = ("default", "iris")
SECRET = "hf_a-value-that-nobody-else-has"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with Platform(tmp_path, {"HF_TOKEN": "of the operator"}) as started:
        yield started


def document(port: int) -> str:
    container = {
        "name": "main",
        "image": "pilotlight/predictor:0.1.0",
        "command": ["/bin/sh", "-c", build("pilotlight", CommandInputs("job", "iris", parse(str(IRIS)), {}))],
        "env": [
            {"name": "INFERENCE_MICROSERVICE", "value": "true"},
            {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "iris", "key": "token"}}},
        ],
        "ports": [{"containerPort": 8080, "hostPort": port}],
        "resources": {"requests": {"memory": "1Gi"}},
    }
    return json.dumps({
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": "iris",
            "labels": {"networking.knative.dev/visibility": "cluster-local"},
            "annotations": {"serving.kserve.io/deploymentMode": "Stateful"},
        },
        "spec": {"predictor": {"minReplicas": 1, "containers": [container]}},
    })  # fmt: skip


def infer(url: str) -> int:
    """503 while it loads its model."""
    with HttpClient(url, PATIENCE_S) as client:
        return client.request("POST", "/v2/models/model/infer", json.dumps(FLOWER).encode()).status


def test_a_microservice_runs_at_its_own_port_with_a_secret_that_nothing_holds(platform: Platform) -> None:
    port = free_port()
    platform.target.set_secret(KEY, {"token": SECRET})
    platform.deploy(document(port))
    status = platform.wait_phase("Ready")
    assert status.url == f"http://127.0.0.1:{port}"
    platform.wait(lambda: infer(status.url) == 200, "an answer at its own port")
    assert platform.ask("/iris/v2/health/ready", None).status == 404
    (pid,) = platform.replicas()
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"WANDB_API_KEY={SECRET}".encode() in environ
    assert not any(line.startswith(b"HF_TOKEN=") for line in environ)
    files = [file for file in platform.home.root.rglob("*") if file.is_file()]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]

    platform.kill_control()  # the next control process does not know the value
    platform.wait(platform.answers, "the control process to be back")
    assert platform.replicas() == [pid]
    assert infer(status.url) == 200
    os.kill(pid, signal.SIGKILL)
    sentence = "WANDB_API_KEY of iris: its value was set at the start, before this control process started"
    platform.wait(lambda: any(sentence in event for event in platform.events(KEY)), "the reason")
    platform.target.set_secret(KEY, {"token": SECRET})
    platform.wait(lambda: bool(platform.replicas()), "a replica with its secret")

    platform.target.delete(KEY)
    platform.wait(lambda: not platform.target.list(None), "its end")
    assert not platform.replicas()


@pytest.mark.skipif(not sandbox.detect().kind, reason="this machine has no sandbox")
def test_a_service_with_a_model_of_others_runs_in_a_sandbox_until_it_is_deleted(platform: Platform) -> None:
    platform.deploy(f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  annotations: {{pilotlight.dev/isolation: sandbox}}
spec: {{predictor: {{minReplicas: 1, model: {{modelFormat: {{name: onnx}}, storageUri: {IRIS}}}}}}}
""")
    platform.wait_phase("Ready")
    assert platform.ask().status == 200
    (pid,) = platform.replicas()
    assert b"HF_TOKEN" not in Path(f"/proc/{pid}/environ").read_bytes()
    platform.kill_control()
    platform.wait(platform.answers, "the control process to be back")
    assert platform.replicas() == [pid]
    assert platform.ask().status == 200
    os.kill(pid, signal.SIGKILL)
    platform.wait(lambda: platform.replicas() not in ([], [pid]), "another replica")
    platform.wait(lambda: platform.ask().status == 200, "an answer of it")
    assert len([*platform.home.copies.iterdir()]) == 1
    platform.target.delete(KEY)
    platform.wait(lambda: not [*platform.home.copies.iterdir(), *platform.home.sockets.iterdir()], "its end")
