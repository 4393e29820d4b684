"""The embedded platform on a machine with GPUs: who gets one, who waits for it, and how long a start takes.

    python bench/gpu/embedded.py > bench/results/embedded_gpu.json

Needs torch with CUDA and what the platform itself needs. Deploys TorchScript models that ask for one GPU each, one more
than the machine has, and tells what `status` says; then frees one. Starts are measured with and without a pilot light.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform"), str(ROOT / "predictor")]

from tests.embedded import Platform  # noqa: E402

BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
CONFIG = """
name: "NAME"
platform: "pytorch_libtorch"
max_batch_size: 0
input [{ name: "x" data_type: TYPE_FP32 dims: [-1, 4] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [-1, 4] }]
instance_group [{ kind: KIND_GPU }]
"""


def document(name: str, repository: Path) -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    autoscaling.knative.dev/window: 6s
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 1
    model:
      modelFormat: {{name: triton}}
      protocolVersion: v2
      storageUri: {repository.as_uri()}
      resources:
        limits: {{nvidia.com/gpu: "1"}}
"""


def write_model(repository: Path, name: str) -> None:
    import torch

    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    folder = repository / name / "1"
    folder.mkdir(parents=True)
    torch.jit.script(Double()).save(str(folder / "model.pt"))
    (repository / name / "config.pbtxt").write_text(CONFIG.replace("NAME", name))


def visible(platform: Platform) -> list[str]:
    lines = [line for pid in platform.replicas() for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    return sorted(line.decode() for line in lines if line.startswith(b"CUDA_VISIBLE_DEVICES="))


def ask(platform: Platform, name: str) -> list[float]:
    reply = platform.ask(f"/{name}/v2/models/{name}/infer", BODY, timeout=120)
    assert reply.status == 200, reply.body
    return list(reply.json()["outputs"][0]["data"])


def contest(folder: Path) -> dict[str, object]:
    """Two services, one GPU: the second waits and says for whom, and starts when the first is deleted."""
    with Platform(folder / "contest") as platform:
        for name in ("first", "second"):
            write_model(folder / name, name)
        platform.deploy(document("first", folder / "first"))
        platform.wait_phase("Ready", name="first", seconds=120)
        platform.target.scale(("default", "first"), {"minReplicas": 1, "maxReplicas": 1})
        answer, devices = ask(platform, "first"), visible(platform)
        platform.deploy(document("second", folder / "second"))
        platform.wait(lambda: "waiting" in platform.status("second").message, "the second one to wait", 60)
        waiting = platform.status("second")
        platform.target.delete(("default", "first"))
        platform.wait_phase("Ready", name="second", seconds=120)
        return {
            "answer": answer, "devices": devices, "waiting": waiting.message, "state": waiting.revisions[0].model_state,
            "after": ask(platform, "second"),
        }  # fmt: skip


def starts(folder: Path, pilot: str, count: int = 3) -> dict[str, object]:
    """0 → first byte through the gateway, in seconds, and the phases of the last one."""
    with Platform(folder / f"starts-{pilot}", env={"PILOTLIGHT_PILOT_LIGHT": pilot}) as platform:
        name = f"light{pilot}"
        write_model(folder / name, name)
        platform.deploy(document(name, folder / name))
        platform.wait_phase("Ready", name=name, seconds=120)
        if pilot == "on":
            platform.wait(lambda: any(platform.home.run.glob("pilot-*.sock")), "the pilot light to burn", 60)
        seconds = []
        for _ in range(count):
            platform.wait_phase("Standby", name=name, seconds=60)
            platform.wait(lambda: not platform.replicas(), "the process to end")
            begin = time.monotonic()
            ask(platform, name)
            seconds.append(round(time.monotonic() - begin, 3))
        return {"seconds": seconds, "phases": dict(platform.status(name).revisions[0].cold_start)}


def main() -> None:
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result = {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "torch": torch.__version__,
            "contest": contest(folder),
            "without_pilot_light": starts(folder, "off"),
            "with_pilot_light": starts(folder, "on"),
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
