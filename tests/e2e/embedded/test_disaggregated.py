"""Engine, decoder and our router from one document, with stand-ins of SGLang in containers that are processes."""

import json
from collections.abc import Iterator

import pytest
from tests.embedded import Platform
from tests.engines import docker_program
from tests.ports import free_port


def document(prefill: int, decode: int, bootstrap: int) -> str:
    """As a user of Docker has it: every engine listens on a port of the machine's own network."""

    def component(role: str, port: int, mode: str) -> str:
        flags = f"--port={port}, --disaggregation-mode={mode}, --disaggregation-bootstrap-port={bootstrap}"
        return f"""
  {role}:
    minReplicas: 1
    maxReplicas: 1
    deploymentStrategy: {{type: Recreate}}
    runner:
      name: ome-container
      image: example/sglang:1
      command: [python3, -m, tests.engines.sglang_engine]
      args: [{flags}]
      ports: [{{containerPort: {port}, hostPort: {port}}}]
      readinessProbe: {{httpGet: {{path: /health, port: {port}}}, periodSeconds: 1}}"""

    return f"""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {{name: apart}}
spec:
  router: {{minReplicas: 1, maxReplicas: 1, config: {{health_check_interval: 1s}}}}
{component("engine", prefill, "prefill")}
{component("decoder", decode, "decode")}
"""


@pytest.fixture
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    env = docker_program.installed(tmp_path_factory.mktemp("docker") / "stand-in")
    home = tmp_path_factory.mktemp("home")
    with Platform(home, env, name="docker", options={"network": "host"}) as running:
        yield running


def test_prefill_and_decode_answer_together_streamed_and_not(platform: Platform) -> None:
    platform.deploy(document(free_port(), free_port(), free_port()))
    platform.wait_phase("Ready", name="apart")
    assert {row.role for row in platform.status("apart").revisions} == {"router", "engine", "decoder"}
    body = {"prompt": "one two three"}
    reply = platform.ask("/apart/v1/completions", body)
    assert (reply.status, reply.json()["choices"][0]["text"]) == (200, "one two three")
    streamed = platform.ask("/apart/v1/completions", {**body, "stream": True})
    events = [line.removeprefix(b"data: ") for line in streamed.body.split(b"\n") if line.startswith(b"data: ")]
    assert [json.loads(event)["choices"][0]["text"] for event in events[:-1]] == ["one", "two", "three"]
    assert events[-1] == b"[DONE]"
    assert platform.ask("/apart/v1/models", None).json()["data"] == [{"id": "decode"}]
