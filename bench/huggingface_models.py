"""Text classifiers of two small shapes that people serve, and the request for them in each server's own names."""

import json
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.environments import Environment, peer_environment
from bench.layouts import PEERS
from bench.load import BenchError
from bench.models import Model, Payload
from bench.processes import Command
from bench.servers import OURS, Ports, Start, start_mlserver
from bench.subject import Subject

SCRIPT: Final = PEERS / "huggingface_models.py"
TEXT: Final = "the film was long and slow but the light in every picture of the harbour made up for all of it"
CLASSIFIERS: Final[Mapping[str, tuple[int, int, int]]] = {
    "bert-tiny": (128, 2, 2),  # hidden size, layers, heads: 4.4 million weights
    "minilm": (384, 6, 12),  # 22 million
}
MLSERVER_BATCHING: Final[Mapping[str, Mapping[str, str]]] = {
    "": {"OMP_NUM_THREADS": "1"},
    ".batching": {
        "OMP_NUM_THREADS": "1", "MLSERVER_MODEL_MAX_BATCH_SIZE": "32", "MLSERVER_MODEL_MAX_BATCH_TIME": "0.005",
    },
}  # fmt: skip
INPUTS: Final = {OURS: "text", "mlserver": "array_inputs"}


def write_classifiers(directory: Path, environment: Environment) -> dict[str, Model]:
    """Make those that are missing, each with transformers' own answer beside it."""
    models = {}
    for name, shape in CLASSIFIERS.items():
        folder = directory / name
        if not _answer_path(folder).exists():
            answer = _run(environment, "write", str(folder), *map(str, shape), TEXT)
            _answer_path(folder).write_text(answer.splitlines()[-1])
        models[name] = Model(name, folder, (1,), (1,))
    return models


def classifier_payload(server: str, model: Model) -> Payload:
    inputs = [{"name": INPUTS[server], "shape": [1], "datatype": "BYTES", "data": [TEXT]}]
    body = json.dumps({"inputs": inputs}).encode()
    return Payload(body, (), {"Content-Type": "application/json"}, partial(check_classifier, model))


def check_classifier(model: Model, body: bytes) -> None:
    """Raise BenchError unless label and score are in the response, whatever the names of its outputs."""
    answer = json.loads(_answer_path(model.path).read_text())
    numbers = map(float, re.findall(rb"\d\.\d+", body))
    close = any(math.isclose(number, answer["score"], abs_tol=1e-3) for number in numbers)
    if answer["label"].encode() not in body or not close:
        raise BenchError(f"{model.name}: the first inference gave {body[:300]!r}, transformers itself gives {answer}")


def loop_rps(environment: Environment, model: Model, rows: int, seconds: float) -> float:
    """Texts a second of a plain loop: what the model alone allows."""
    return float(_run(environment, "loop", str(model.path), TEXT, str(rows), str(seconds)).splitlines()[-1])


def classifier_subjects(subject: Subject) -> dict[str, Subject]:
    """The server with the classifiers: ours as it comes, MLServer with and without its adaptive batching.

    MLServer's runtime has an environment of its own, since it brings torch, and the transformers that write the models.
    """
    if subject.server.name not in INPUTS:
        return {}
    environment = peer_environment("mlserver-huggingface")
    models = write_classifiers(subject.work, environment)
    payloads = {name: classifier_payload(subject.server.name, model) for name, model in models.items()}
    with_models = replace(subject, models=models, payloads=payloads)
    if subject.server.name == OURS:
        return {"": with_models}
    return {
        name: replace(with_models, environment=environment, server=replace(subject.server, start=_with(settings)))
        for name, settings in MLSERVER_BATCHING.items()
    }


def _with(settings: Mapping[str, str]) -> Start:
    def start(env: Environment, models: Sequence[Model], folder: Path, ports: Ports) -> Command:
        return replace(start_mlserver(env, models, folder, ports), env=settings)

    return start


def _answer_path(folder: Path) -> Path:
    return folder.with_suffix(".answer")


def _run(environment: Environment, *words: str) -> str:
    done = subprocess.run(
        [environment.python, str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise BenchError(f"{SCRIPT.name} {words[0]} failed: {done.stderr.strip()[-400:]}")
    return done.stdout
