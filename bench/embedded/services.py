"""The services that are deployed, and asking one of them through the gateway as a client would."""

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import BenchError, Target
from bench.models import Model, Payload, iris_payload
from bench.subject import check_answer

ANSWER_LIMIT_S = 30.0
DOCUMENT = """apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: 1
    model:
      modelFormat:
        name: onnx
      protocolVersion: v2
      storageUri: {model}
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds from the first byte sent to the first byte of the answer; `held_ms` as the gateway tells it."""

    seconds: float
    held_ms: float | None


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:03d}" for number in range(count)]


def write(path: Path, services: Sequence[str], model: Model, least: int = 0) -> Path:
    """One file with a document for each service."""
    path.write_text("---\n".join(DOCUMENT.format(name=name, least=least, model=model.path) for name in services))
    return path


def infer_path(service: str) -> str:
    return f"/v2/models/{service}/infer"


def gateway_path(service: str) -> str:
    return f"/{service}{infer_path(service)}"


def ask(port: int, service: str, payload: Payload) -> Answered:
    """On a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
    started = time.perf_counter()
    try:
        connection.request("POST", gateway_path(service), payload.body, dict(payload.headers))
        answer = connection.getresponse()
        seconds = time.perf_counter() - started
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"{service} answered {answer.status}: {body[:200]!r}")
    held = answer.headers.get("X-Pilotlight-Cold-Start")
    return Answered(seconds, float(held) if held else None)


def direct(port: int, service: str, model: Model, work: Path) -> Target:
    """The replica itself, which must answer as onnxruntime does."""
    payload = iris_payload(model)
    check_answer(port, service, payload)
    return _target(f"http://127.0.0.1:{port}{infer_path(service)}", payload, work)


def through_gateway(port: int, service: str, model: Model, work: Path) -> Target:
    return _target(f"http://127.0.0.1:{port}{gateway_path(service)}", iris_payload(model), work)


def _target(url: str, payload: Payload, work: Path) -> Target:
    body = work / "embedded.body"
    body.write_bytes(payload.body)
    return Target(url, payload, body)
