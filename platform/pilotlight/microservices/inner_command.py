"""Shell commands inside the container: one for each kind of microservice, the same on every platform. Pure.

A platform runs it unchanged with `sh -c`; differences between platforms are passed by the environment, as are secrets.
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
# Python interpreter of the predictor, if not the first `python` of the PATH.
ENV_PYTHON: Final = "PILOTLIGHT_PYTHON"
MODEL_NAME: Final = "model"  # name of the predictor's only model


class CommandInputs(Struct, frozen=True):
    """Inputs of a command."""

    job_id: str
    network_arch: str
    model: ModelPath
    env: Mapping[str, str]
    num_gpus: int = 1


def build(row: str, inputs: CommandInputs) -> str:
    if row not in COMMANDS:
        known = ", ".join(COMMANDS)
        message = f"network_arch {inputs.network_arch} has no container command, so it cannot be started"
        raise UsageError(message, f"there are commands for {known}; container_command in its config file names one")
    return PREFIX + COMMANDS[row](inputs)


def _cosmos_rl(inputs: CommandInputs) -> str:
    """Return the command of Cosmos-RL: the job and the environment as JSON."""
    job = {
        "job_id": inputs.job_id,
        "neural_network_name": inputs.network_arch,
        "specs": {"model_path": _contained(inputs).uri, "num_gpus": inputs.num_gpus},
        "cloud_metadata": {},
    }
    program = shlex.quote(f"{inputs.network_arch}-inference-microservice")
    return f"{program} --job {_quoted(job)} --docker_env_vars {_quoted(dict(inputs.env))}"


def _cosmos_predict(inputs: CommandInputs) -> str:
    """Return the command of Cosmos-Predict; parameters of requests are not part of it."""
    model = _contained(inputs)
    flag = "--model" if model.kind == "hub" else "--checkpoint-path"
    return f"cosmos_predict inference_microservice start {flag} {shlex.quote(model.value)} --port {PORT}"


def _pilotlight(inputs: CommandInputs) -> str:
    """Return the command of the predictor. INFERENCE_PORT and INFERENCE_HOST override port 8080 on all addresses.

    gRPC and metrics are off: their ports are in the range of microservices, and /metrics is on the HTTP port too.
    """
    flags = ["--microservice", "--model-path", inputs.model.uri, "--model-name", MODEL_NAME, "--log-format", "json"]
    off = ["--grpc-port", "-1", "--metrics-port", "-1"]
    return f'exec "${{{ENV_PYTHON}:-python}}" -m pilotlight_predictor {shlex.join([*flags, *off])}'


def _contained(inputs: CommandInputs) -> ModelPath:
    if inputs.model.kind == "remote":
        message = f"model_path = {inputs.model.value}: a {inputs.network_arch} container reads no cloud storage"
        raise UsageError(message, "name hf_model://ORG/MODEL, or a path that the container sees")
    return inputs.model


def _quoted(document: object) -> str:
    return shlex.quote(json.dumps(document))


COMMANDS: Final[Mapping[str, Callable[[CommandInputs], str]]] = {
    "cosmos-rl": _cosmos_rl,
    "cosmos-predict2.5": _cosmos_predict,
    "pilotlight": _pilotlight,
}
