"""What a backend is: a module with `load(spec) -> Instance`.

An instance tells what it found in the model file (`inputs`, `outputs`), so that a configuration can be derived or
checked without reading the file twice.

A module of this folder imports its heavy library inside `load` (or a function it calls), never at the top: looking a
backend up must cost nothing. How to add one: docs/backends.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilotlight_predictor.inference import InferRequest, Inputs, Outputs
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.tensors import TensorSpec

Answer = Outputs | Exception


@dataclass(frozen=True, slots=True)
class Device:
    """Where an instance computes: the CPU, or one CUDA device."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """All that a backend may know when it loads one version of one model onto one device."""

    config: ModelConfig
    version: int
    path: Path  # the model file or directory, already chosen (default_model_filename, cc_model_filenames)
    model_dir: Path  # <repository>/<model>, or the parent of a plain file
    device: Device = Device()
    precision: str = "auto"  # auto | fp32 | fp16 | bf16
    threads: int = 0  # intra-op threads; 0 lets the runtime choose
    trusted_pickles: Mapping[str, str] = field(default_factory=dict)  # file name → sha256 an operator vouched for


class Instance(Protocol):
    """One execution context. `execute` is called by one thread at a time; clones share weights where they can."""

    inputs: Sequence[TensorSpec]  # what the model file declares; empty when it cannot say
    outputs: Sequence[TensorSpec]
    quick: bool  # may run on the event loop when it proves to take microseconds (never for user code)

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        """One answer per request, in order. An exception for one request stands in its place; when all of the batch
        fails it is raised, and the worker runs each request alone."""

    def clone(self) -> "Instance":
        """Another context on the same device for a second instance of the group."""

    def close(self) -> None:
        """Frees what it holds; called once, after the last execute."""


class TensorInstance:
    """For runtimes that take one batched set of arrays: merges the requests, runs once, splits the result."""

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    quick = False

    def run(self, inputs: Inputs) -> Outputs:
        raise NotImplementedError

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if len(batch) == 1:
            return [self.run(batch[0].inputs)]
        from pilotlight_predictor.batch import merge, split

        merged, rows = merge(batch)
        return split(self.run(merged), rows)

    def clone(self) -> "TensorInstance":
        return self

    def close(self) -> None:
        return None
