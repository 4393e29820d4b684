"""Backend interface: a module with `load(spec) -> Instance` and optionally `prepare()` and `prefetch(spec)`.

`prepare` imports the backend's library early; `prefetch` starts reading weights before that import. An instance has the
`inputs` and `outputs` of the model file, from which a configuration is derived or checked. A backend imports its heavy
library inside `load`, never at module level, so that looking it up costs nothing. How to add one:
docs/reference/backends.md.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Inputs, Outputs
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from pilotlight_predictor.metrics.custom import CustomMetrics

Answer = Outputs | Exception


class Device(Struct, frozen=True):
    """Device of an instance: the CPU, or one CUDA device."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


class VersionId(NamedTuple):
    """A model version by name and number."""

    name: str
    number: int


class ModelResponses(Protocol):
    """Responses to one call of a model, read by the calling thread. `cancel` before leaving early."""

    ended: bool

    @property
    def waiting(self) -> bool:
        """Whether `next` would return without blocking."""

    def next(self) -> tuple[InferResponse | Exception, bool]:
        """Block until the next response; True with the final one, after which `next` must not be called."""

    def cancel(self) -> None:
        """Cancel the rest of the call. From any thread."""


class ModelLoader(Protocol):
    """Load and unload models of the server, blocking, from any thread but the event loop's."""

    def load(self, caller: str, name: str, config: Mapping[str, Any] | None, files: Mapping[str, bytes]) -> None: ...
    def unload(self, caller: str, name: str, dependents: bool) -> None: ...
    def ready(self, name: str, version: int) -> bool: ...


class ModelCaller(Protocol):
    """Access of user code to the other models of the server (Triton's business logic scripting). From any thread."""

    @property
    def custom_metrics(self) -> "CustomMetrics": ...
    @property
    def management(self) -> ModelLoader: ...
    def forget_metrics(self, owner: object) -> None: ...
    def take_refused(self, caller: VersionId) -> bool:
        """Whether the caller has called a model that was not ready since the last time this was read."""

    def call(
        self,
        caller: VersionId,
        request: InferRequest,
        *,
        decoupled: bool,
        blocks: bool = True,
        on_response: Callable[[], None] | None = None,
    ) -> ModelResponses:
        """Send a request to another model.

        `decoupled`: any number of responses is accepted. `blocks`: the caller's instance serves no request until the
        end. `on_response` is called on the server's event loop for each response.
        """


class LoadSpec(Struct, frozen=True):
    """Input of a backend's `load`: one version of one model, for one device."""

    config: ModelConfig
    version: int
    path: Path  # the model file or directory, already chosen (default_model_filename, cc_model_filenames)
    model_dir: Path  # <repository>/<model>, or the parent of a plain file
    device: Device = Device()
    precision: str = "auto"  # auto | fp32 | fp16 | bf16
    threads: int = 0  # intra-op threads; 0 lets the runtime choose
    trusted_pickles: Mapping[str, str] = field(default_factory=dict)  # file name → trusted SHA-256
    trusted_compiled: Sequence[str] = ()  # paths or hashes of trusted compiled models
    calls: ModelCaller | None = None  # access of user code to the other models of the server
    parkable: bool = False  # weights may leave the GPU while idle (parking/)
    prefetched: Any = None  # result of the backend's `prefetch(spec)`

    @property
    def folder(self) -> Path:
        """Directory of the model file, or the model directory itself."""
        return self.path if self.path.is_dir() else self.path.parent


class Instance(Protocol):
    """One execution context. `execute` is called by one thread at a time; clones share weights if possible."""

    inputs: Sequence[TensorSpec]  # of the model file; empty if it declares none
    outputs: Sequence[TensorSpec]
    quick: bool  # may run on the event loop once measured to take microseconds (never for user code)

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        """Return one answer per request, in order; an exception as an answer fails that request alone.

        If it raises, the worker runs each request of the batch alone.
        """

    def clone(self) -> "Instance":
        """Create another context on the same device."""

    def close(self) -> None:
        """Free resources; called once, after the last execute."""


class DecoupledRequest(Protocol):
    """One request of a decoupled model, with its response stream. Thread-safe."""

    request: InferRequest

    @property
    def cancelled(self) -> bool:
        """Whether the client has disconnected: further responses are dropped, so stop early."""

    @property
    def full(self) -> bool:
        """Whether `send` would block, for threads that serve several requests."""

    def send(self, answer: Answer, final: bool | None = None) -> None:
        """Send a response; blocks while the client reads slowly.

        An Exception is the last unless `final` is False; an answer is the last only if `final` is True.
        """

    def complete(self) -> None:
        """End the response stream. Required for every request, also a cancelled one; idempotent."""


class DecoupledInstance(Protocol):
    """An instance of a model with any number of responses per request; `begin` replaces `execute`."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    quick: bool
    decoupled: bool  # True

    def begin(self, batch: Sequence[DecoupledRequest]) -> None:
        """Start a batch, in the instance's thread. The next batch may begin as soon as it returns.

        An exception ends every request of the batch that is not complete.
        """

    def clone(self) -> "DecoupledInstance": ...

    def close(self) -> None:
        """Free resources; called once, after the last request is complete."""


AnyInstance = Instance | DecoupledInstance


class Parkable(Protocol):
    """Attribute `parking` of an instance that can free its GPU memory while idle (docs/how-to/gpus.md).

    Instances that share weights share it. Called by one thread at a time and, except `prepare`, never while a request
    runs.
    """

    parked: bool  # also if only a part has left the GPU

    @property
    def size(self) -> int:
        """Bytes of host memory needed while parked."""

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory in use."""

    def prepare(self) -> None:
        """Do the slow part of the first parking while requests are served; a failure changes nothing."""

    def park(self) -> None:
        """Free the GPU memory; a failure leaves it awake. Idempotent."""

    def wake(self) -> None:
        """Restore the GPU memory; a failure leaves it parked. Idempotent."""

    def drop_host_copy(self) -> None:
        """Free the host copy that an awake model has for its next parking."""


class Adapters(Protocol):
    """Attribute `adapters` of an instance that serves LoRA adapters of its model (docs/how-to/llm.md).

    Instances that share weights share it. Thread-safe; calls block, so not for the event loop.
    """

    @property
    def paths(self) -> Mapping[str, str]:
        """Folders by name of adapter."""

    def load(self, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter from a local folder. Raise LoadFailed, or BadRequest if the name is in use."""

    def unload(self, name: str) -> None:
        """Unload an adapter; requests in flight finish. Raise NotFound."""


def adapters_of(instances: Sequence[AnyInstance]) -> tuple[Adapters, ...]:
    """Return the adapters of a version's instances, one for each copy of its weights."""
    return tuple(dict.fromkeys(each for instance in instances if (each := getattr(instance, "adapters", None))))


def import_library(name: str, models: str, extra: str) -> Any:
    """Import a library that `models` need. Raise LoadFailed with the extra to install if it cannot be imported."""
    try:
        return import_module(name)
    except ImportError as error:
        raise LoadFailed(f"{models} need the {extra} extra: {install_command(extra)} ({error})") from None


def check_unpacked_memory(path: Path) -> None:
    """Raise LoadFailed if the members of a zip (.pt, .pt2, .skops) do not fit the available memory.

    torch and skops unpack a member in memory, up to the size that its header declares. Members that are not compressed
    are as large as the file, and torch maps them.
    """
    from zipfile import ZIP_STORED, ZipFile

    from pilotlight.wire.machine import available_memory

    with ZipFile(path) as archive:
        needed = sum(member.file_size for member in archive.infolist() if member.compress_type != ZIP_STORED)
    available = available_memory()
    if available is not None and needed > available:
        raise LoadFailed(
            f"{path.name} unpacks to {needed >> 20:,} MiB, but only {available >> 20:,} MiB of memory are available;"
            " check that it is the right file, or save it without compression"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, which may have hundreds."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:400]


def parking_of(instance: object) -> Parkable | None:
    parkable: Parkable | None = getattr(instance, "parking", None)
    return parkable


def is_decoupled(instance: AnyInstance) -> "TypeIs[DecoupledInstance]":
    return bool(getattr(instance, "decoupled", False))


class TensorInstance:
    """Base of runtimes that take batched arrays: merge the requests, run once, split the result."""

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    quick = False

    def run(self, inputs: Inputs) -> Outputs:
        raise NotImplementedError

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        if len(batch) == 1:
            return [self.run(batch[0].inputs)]
        from pilotlight_predictor.core.batch import merge, split

        merged, rows = merge(batch)
        return split(self.run(merged), rows)

    def clone(self) -> "TensorInstance":
        return self

    def close(self) -> None:
        return None
