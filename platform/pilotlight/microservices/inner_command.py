"""The shell command inside the container: one row for each kind of microservice, the same text on every platform. Pure.

A platform runs it with `sh -c` and adds nothing to it; what differs between platforms travels by the environment.
Secrets never stand in it: programs read them from their environment by name.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.model_paths import ModelPath

PREFIX: Final = "umask 0 && "
PORT: Final = 8080
# Which Python runs our predictor, where it is not the first `python` of the PATH.
ENV_PYTHON: Final = "PILOTLIGHT_PYTHON"
MODEL_NAME: Final = "model"  # what our predictor calls its only model


class Inner(Struct, frozen=True):
    """What the programs are told."""

    job_id: str
    network_arch: str
    model: ModelPath
    env: Mapping[str, str]
    num_gpus: int = 1


def build(row: str, inner: Inner) -> str:
    if row not in COMMANDS:
        known = ", ".join(COMMANDS)
        message = f"network_arch {inner.network_arch} has no container command, so it cannot be started"
        raise UsageError(message, f"there are commands for {known}; container_command in its config file names one")
    return PREFIX + COMMANDS[row](inner)


def _cosmos_rl(inner: Inner) -> str:
    """One blob of JSON for the job, one for the environment."""
    job = {
        "job_id": inner.job_id,
        "neural_network_name": inner.network_arch,
        "specs": {"model_path": _contained(inner).uri, "num_gpus": inner.num_gpus},
        "cloud_metadata": {},
    }
    program = shlex.quote(f"{inner.network_arch}-inference-microservice")
    return f"{program} --job {_quoted(job)} --docker_env_vars {_quoted(dict(inner.env))}"


def _cosmos_predict(inner: Inner) -> str:
    """Flags; what concerns one request is not told here."""
    model = _contained(inner)
    flag = "--model" if model.kind == "hub" else "--checkpoint-path"
    return f"cosmos_predict inference_microservice start {flag} {shlex.quote(model.value)} --port {PORT}"


def _pilotlight(inner: Inner) -> str:
    """Port and address come by INFERENCE_PORT and INFERENCE_HOST where they are not 8080 and all. gRPC and metrics
    would lie within the range that microservices get their ports from; /metrics is on the HTTP port too."""
    flags = ["--microservice", "--model-path", inner.model.uri, "--model-name", MODEL_NAME, "--log-format", "json"]
    off = ["--grpc-port", "-1", "--metrics-port", "-1"]
    return f'exec "${{{ENV_PYTHON}:-python}}" -m pilotlight_predictor {shlex.join([*flags, *off])}'


def _contained(inner: Inner) -> ModelPath:
    if inner.model.kind == "remote":
        message = f"model_path = {inner.model.value}: a {inner.network_arch} container reads no cloud storage"
        raise UsageError(message, "name hf_model://ORG/MODEL, or a path that the container sees")
    return inner.model


def _quoted(document: object) -> str:
    return shlex.quote(json.dumps(document))


COMMANDS: Final[Mapping[str, Callable[[Inner], str]]] = {
    "cosmos-rl": _cosmos_rl,
    "cosmos-predict2.5": _cosmos_predict,
    "pilotlight": _pilotlight,
}
