"""Python models that the tests of scaling, access and status ask, and the documents that deploy them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.embedded import Platform

from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.targets.target import Release, ServiceStatus

# Its answers take as long as they are told, asleep or at work; a negative number is an error of the model.
# Zeros, as a warm-up sends them, are answered at once.
SLOW = """
import asyncio
import time

INPUTS = {"sleep": ("FP32", [1]), "work": ("FP32", [1])}
OUTPUTS = {"slept": ("FP32", [1])}


async def predict(sleep, work):
    if sleep[0] < 0:
        raise ValueError("as told")
    end = time.thread_time() + float(work[0])
    while time.thread_time() < end:
        pass
    await asyncio.sleep(float(sleep[0]))
    return sleep
"""
STANDARD = "    serving.kserve.io/deploymentMode: Standard"


def slow(sleep: float = 0.0, work: float = 0.0) -> dict[str, Any]:
    values = {"sleep": sleep, "work": work}
    return {"inputs": [{"name": n, "shape": [1], "datatype": "FP32", "data": [v]} for n, v in values.items()]}


def write_model(folder: Path, source: str = SLOW) -> str:
    """Where the model lies, as a document names it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(source)
    return folder.as_uri()


def python_service(uri: str, *, name: str = "slow", annotations: str = "", predictor: str = "", model: str = "") -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    example.com/described-by: a test
{annotations}
spec:
  predictor:
{predictor or "    minReplicas: 1"}
    model:
      modelFormat: {{name: python}}
      protocolVersion: v2
      storageUri: {uri}
{model}
"""


def deploy_changed(platform: Platform, document: str, change: Callable[[dict[str, Any]], None]) -> ServiceStatus:
    """Deploys the manifests of a document with what it has no field for, such as a KEDA cooldown of seconds."""
    file = platform.home.root / "changed.yaml"
    file.write_text(document)
    planned = plan_all(Sources([str(file)]))
    manifests: list[Mapping[str, Any]] = []
    for manifest in planned.manifests():
        copy = json.loads(json.dumps(manifest.document))
        change(copy)
        manifests.append(copy)
    release = Release(planned.plans[0].namespace, planned.plans[0].name, document, tuple(manifests))
    return platform.target.apply(release)
