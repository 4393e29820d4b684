"""What is compared: our predictor, transformers' generate and llama.cpp, each a process on one core with one thread."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.engines import llama_cpp

from bench.load import BenchError
from bench.machine import Cores, on_core
from bench.processes import Command, free_ports, running
from bench.servers import OURS
from bench.text.generate import Ask, generating
from bench.text.streams import together
from bench.text.weights import EOS, Weights

GENERATE: Final = "transformers"
LLAMA_CPP: Final = "llama.cpp"
CONTEXT: Final = 2048


class Running(NamedTuple):
    pid: int
    ask: Ask


class Subject(NamedTuple):
    title: str
    version: Callable[[], str]
    start: Callable[[Weights, Cores, Path], "contextlib.AbstractContextManager[Running]"]


@contextlib.contextmanager
def predictor(weights: Weights, cores: Cores, work: Path) -> Iterator[Running]:
    ports = free_ports(2)
    argv = [sys.executable, "-m", "pilotlight_predictor", "--host", "127.0.0.1", "--http-port", str(ports[0])]
    argv += ["--metrics-port", "-1", "--grpc-port", "-1", "--threads", "1", "--device", "cpu"]
    argv += ["--model-path", str(weights.folder), "--model-name", "text"]
    with running(Command(argv), ports, ["text"], cores, work / "text-pilotlight.log") as server:
        yield Running(server.pid, partial(together, server.port, more={"ignore_eos": True}))


@contextlib.contextmanager
def generate(weights: Weights, cores: Cores, work: Path) -> Iterator[Running]:
    with contextlib.ExitStack() as stack:
        with on_core(cores.server):
            pid, ask = stack.enter_context(generating(weights.folder, "cpu", 1))
        yield Running(pid, ask)


@contextlib.contextmanager
def llama(weights: Weights, cores: Cores, work: Path) -> Iterator[Running]:
    """Requests are not to end one another, and no token ends a text."""
    ports = free_ports(2)
    argv = [str(llama_programs() / "python"), "-m", "llama_cpp.server", "--model", str(weights.gguf)]
    argv += ["--model_alias", "text", "--host", "127.0.0.1", "--port", str(ports[0]), "--n_ctx", str(CONTEXT)]
    argv += ["--n_threads", "1", "--n_threads_batch", "1", "--interrupt_requests", "false"]
    more: dict[str, Any] = {"logit_bias": {str(token): -100 for token in EOS}}
    log = work / "text-llama-cpp.log"
    with running(Command(argv), ports, ["/v1/models"], cores, log) as server:
        yield Running(server.pid, partial(together, server.port, more=more))


def llama_programs() -> Path:
    """Where the tests keep it too; the first call on a machine builds it, in twenty minutes."""
    try:
        return llama_cpp.programs()
    except pytest.skip.Exception as skipped:
        raise BenchError(f"llama.cpp could not be built: {skipped}") from None


SUBJECTS: Final = {
    OURS: Subject("Pilotlight", lambda: f"pilotlight {version('pilotlight')}", predictor),
    GENERATE: Subject(
        "transformers.generate", lambda: f"transformers {version('transformers')}, torch {version('torch')}", generate
    ),
    LLAMA_CPP: Subject("llama.cpp, 4 bits", lambda: llama_cpp.SERVER, llama),
}
