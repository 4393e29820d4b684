"""Engines of other images share one GPU: one sleeps by itself, the other is checkpointed by the driver (stand-ins)."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.cuda import stand_in
from tests.e2e.embedded.fake_gpu import write_nvml
from tests.embedded import Platform
from tests.engines.installed import install

SIZE = 1000
NOT_SUPPORTED = 801
ENGINES = {
    "vllm": ("vllm/vllm-openai:v0.20.1", "[vllm, serve]", "{model}"),
    "llama": ("ggml-org/llama.cpp:server", "[llama-server]", "--model, {model}/m.gguf"),
}


class Machine:
    """A platform on a machine with one GPU, which each engine uses whole."""

    def __init__(self, platform: Platform, gpu: Path, model: Path) -> None:
        self.platform, self.gpu, self._model = platform, gpu, model

    def deploy(self, name: str, engine: str, window: str = "1h") -> None:
        image, command, args = ENGINES[engine]
        env = {**stand_in.variables(self.gpu), stand_in.ENV_SIZE: str(SIZE)}
        listed = ", ".join(f'{{name: {key}, value: "{value}"}}' for key, value in env.items())
        self.platform.deploy(f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    pilotlight.dev/park: "true"
    autoscaling.knative.dev/window: {window}
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    containers:
    - name: kserve-container
      image: {image}
      command: {command}
      args: [{args.format(model=self._model)}]
      env: [{listed}]
      ports: [{{containerPort: 8080}}]
      resources: {{limits: {{nvidia.com/gpu: 1}}}}
      readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1}}
""")

    def ask(self, name: str) -> str:
        model = self.platform.ask(f"/{name}/v1/models", None).json()["data"][0]["id"]
        reply = self.platform.ask(f"/{name}/v1/completions", {"model": model, "prompt": "one two"})
        assert reply.status == 200, reply.body
        return str(reply.json()["choices"][0]["text"])

    def used(self) -> int:
        return sum(int(file.read_text()) for file in self.gpu.glob("[0-9]*") if Path(f"/proc/{file.name}").exists())

    def replicas(self) -> set[str]:
        """Names, of which each is used for one process only."""
        rows = [row for status in self.platform.target.list(None) for row in status.revisions]
        return {each.name for row in rows for each in row.replicas if each.state != "exited"}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/m.gguf").write_bytes(b"GGUF")
    env = {
        **write_nvml(tmp_path / "nvml"), **stand_in.variables(tmp_path / "nvml/gpu"),
        "PILOTLIGHT_ENGINE_PATH": install(tmp_path / "environment", "vllm", "llama_cpp_python"),
    }  # fmt: skip
    with Platform(tmp_path / "home", env) as platform:
        yield Machine(platform, tmp_path / "nvml/gpu", tmp_path / "model")


def test_two_engines_share_one_gpu_parked_in_turn_through_a_restart_of_the_platform(machine: Machine) -> None:
    platform = machine.platform
    machine.deploy("sleeps", "vllm")
    platform.wait_phase("Ready", name="sleeps")
    machine.deploy("held", "llama")
    platform.wait_phase("Ready", name="held")
    assert platform.wait_phase("Parked", name="sleeps").revisions[0].ready == 0
    processes = machine.replicas()
    assert (len(processes), machine.used()) == (2, SIZE)

    assert machine.ask("sleeps") == "one two"
    assert any(
        line.startswith("Preempted: parked: default/sleeps needs GPU 0")
        for line in platform.events(("default", "held"))
    )
    platform.wait_phase("Parked", name="held")
    assert platform.ask("/sleeps/sleep?level=1", {}).status == 404
    platform.kill_control()
    platform.wait(platform.answers, "the control process to be back")
    assert machine.ask("held") == "one two"
    assert machine.replicas() == processes
    assert machine.used() == SIZE
    metrics = urlopen(f"http://127.0.0.1:{platform.address.port}/metrics").read().decode()
    assert "pilotlight_replica_wake_seconds{" in metrics


@pytest.mark.long
def test_an_engine_that_does_not_come_back_as_it_was_starts_again_and_is_stopped_from_then_on(machine: Machine) -> None:
    platform = machine.platform
    machine.deploy("held", "llama", "6s")
    platform.wait_phase("Ready", name="held")
    before = machine.replicas()
    platform.wait(lambda: machine.used() == 0, "the engine to leave the GPU")
    (machine.gpu / "corrupt").touch()
    assert machine.ask("held") == "one two"
    assert not before & machine.replicas()
    events = platform.events(("default", "held"))
    assert any(
        line.startswith("WakeFailed: started again, and not parked from now on: its response") for line in events
    )
    platform.wait_phase("Standby", name="held")


@pytest.mark.long
def test_an_engine_that_the_driver_cannot_checkpoint_is_stopped_and_says_so_once(machine: Machine) -> None:
    platform = machine.platform
    stand_in.fail(machine.gpu, "Checkpoint", NOT_SUPPORTED)
    machine.deploy("held", "llama", "6s")
    platform.wait_phase("Ready", name="held")
    platform.wait_phase("Standby", name="held")
    assert machine.ask("held") == "one two"
    platform.wait_phase("Standby", name="held")
    (event,) = (line for line in platform.events(("default", "held")) if line.startswith("NotParked"))
    assert event.endswith("CUDA_ERROR_NOT_SUPPORTED")
