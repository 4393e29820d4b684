"""What a backend is: a module with `load(spec) -> Instance`, and maybe `prepare()` and `ahead(spec)`.

An instance tells what it found in the model file (`inputs`, `outputs`), so that a configuration can be derived or
checked without reading the file twice.

A module of this folder imports its heavy library inside `load` (or a function it calls), never at the top: looking a
backend up must cost nothing. How to add one: docs/backends.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from pilotlight_predictor.inference import InferRequest, Inputs, Outputs
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.tensors import TensorSpec

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from pilotlight_predictor.model_calls import ModelCalls

Answer = Outputs | Exception


class Device(Struct, frozen=True):
    """Where an instance computes: the CPU, or one CUDA device."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


class LoadSpec(Struct, frozen=True):
    """All that a backend may know when it loads one version of one model onto one device."""

    config: ModelConfig
    version: int
    path: Path  # the model file or directory, already chosen (default_model_filename, cc_model_filenames)
    model_dir: Path  # <repository>/<model>, or the parent of a plain file
    device: Device = Device()
    precision: str = "auto"  # auto | fp32 | fp16 | bf16
    threads: int = 0  # intra-op threads; 0 lets the runtime choose
    trusted_pickles: Mapping[str, str] = field(default_factory=dict)  # file name → sha256 an operator vouched for
    trusted_compiled: Sequence[str] = ()  # paths below which, or hashes by which, compiled models may be run
    calls: "ModelCalls | None" = None  # how user code reaches the other models of the server
    parks: bool = False  # weights may leave the GPU while nobody asks (parking/)
    ahead: Any = None  # what the backend's own `ahead(spec)` began before its library was imported


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


class Asked(Protocol):
    """One request of a decoupled model. All of it may be used by any thread."""

    request: InferRequest

    @property
    def cancelled(self) -> bool:
        """The client has gone: whatever is still sent is dropped, so stop early."""

    @property
    def full(self) -> bool:
        """`send` would wait now: for a thread that has others to serve meanwhile."""

    def send(self, answer: Answer, final: bool | None = None) -> None:
        """Any number of times; waits while the client reads slowly. An Exception is the last, unless `final` is False;
        an answer is the last only if `final` is True."""

    def complete(self) -> None:
        """There is nothing more to send. Every request needs its end, also a cancelled one; twice does no harm."""


class DecoupledInstance(Protocol):
    """An instance whose model gives any number of answers to a request. It has no `execute`; the rest is as above."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    quick: bool
    decoupled: bool  # True

    def begin(self, batch: Sequence[Asked]) -> None:
        """In the instance's thread. May return before the answers are complete: then the next batch may begin.
        What it raises ends every request of the batch that is not complete."""

    def clone(self) -> "DecoupledInstance": ...

    def close(self) -> None:
        """After the last request is complete."""


AnyInstance = Instance | DecoupledInstance


class Parks(Protocol):
    """What gives its GPU's memory back while nobody asks: `parking` of an instance that can (docs/parking.md).

    Instances that share weights have the same one. Called by one thread at a time; but for `prepare`, never while a
    request runs.
    """

    parked: bool  # also where only a part of it has left the GPU

    @property
    def size(self) -> int:
        """Bytes of host memory that it takes while it is parked."""

    @property
    def kept(self) -> int:
        """Bytes of host memory that it has at this moment."""

    def prepare(self) -> None:
        """The slow part of the first parking, while requests are served: what it raises leaves it as it was."""

    def park(self) -> None:
        """What it raises leaves it awake. Twice is once."""

    def wake(self) -> None:
        """What it raises leaves it parked. Twice is once."""

    def forget(self) -> None:
        """Gives back host memory that it keeps while awake, for its next parking."""


def parking_of(instance: object) -> Parks | None:
    found: Parks | None = getattr(instance, "parking", None)
    return found


def is_decoupled(instance: AnyInstance) -> "TypeIs[DecoupledInstance]":
    return bool(getattr(instance, "decoupled", False))


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
