"""CUDA graphs of a torch instance: which to capture, which one serves a batch, and how one is captured and replayed.

torch.py asks for `plans` where the configuration says `optimization { cuda { graphs: true } }`, has them captured
before the first answer, and looks up the `fitting` one for each batch. A replay launches the whole model at once
instead of each of its kernels by Python: the thread of the instance then needs the interpreter for microseconds a
batch, whoever else wants it. A batch between two captured sizes runs as the larger, and the rows that nobody asked for
are cut off.
"""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.torch_signature import Calling
from pilotlight_predictor.beside_requests import wait_at_most
from pilotlight_predictor.inference import Inputs
from pilotlight_predictor.logs import log
from pilotlight_predictor.repository.model_config import GraphSpec, ModelConfig
from pilotlight_predictor.tensors import Shape, TensorSpec
from pilotlight_predictor.weights.cuda_driver import WHOLE_DEVICE

if TYPE_CHECKING:
    import torch

    Values = dict[str, torch.Tensor]
    Compute = Callable[[Values], Values]

WARM_UPS: Final = 3  # runs before a capture: libraries choose their kernels and take their workspaces in them
# A thread that replays wants the interpreter for microseconds, and the event loop while it is busy lets go of it after
# Python's 5 ms: longer than many a batch takes.
SWITCH_S: Final = 0.0005
Signature = tuple[tuple[str, str, Shape], ...]  # (name, datatype, dims without the batch dimension) of each input


class Plan(NamedTuple):
    """One graph: for batches of `least` to `rows` rows; 0 and 0 where there is no batch dimension."""

    rows: int
    least: int
    signature: Signature


def sizes(max_batch_size: int, preferred: Sequence[int] = ()) -> list[int]:
    """What to capture when nobody says: 1, 2, 4, … below the largest, the preferred ones and the largest."""
    powers = (1 << power for power in range(max_batch_size.bit_length()))
    return sorted({*(size for size in (*powers, *preferred) if size < max_batch_size), max_batch_size})


def plans(config: ModelConfig, calling: Calling, found: Sequence[TensorSpec]) -> list[Plan]:
    """The largest first, so that smaller ones find its memory. `found` is what the model file declares.

    Raises ValueError with the reason when it cannot be known what to capture.
    """
    if calling.scalars:
        raise ValueError(f"{', '.join(sorted(calling.scalars))} is a number to forward, which a graph would keep")
    inputs = _inputs(config, calling, found)
    preferred = config.dynamic_batching.preferred_batch_size if config.dynamic_batching else ()
    wanted = config.cuda_graphs or [GraphSpec(size) for size in sizes(config.max_batch_size, preferred)]
    made = [Plan(spec.rows, spec.least, _signature(inputs, spec.dims)) for spec in wanted]
    return sorted((_bounded(plan, made) for plan in made), key=lambda plan: plan.rows, reverse=True)


def _bounded(plan: Plan, others: Sequence[Plan]) -> Plan:
    """Where nobody says how few rows it serves: more than the next smaller one does."""
    below = [other.rows for other in others if other.signature == plan.signature and other.rows < plan.rows]
    return plan if plan.least else plan._replace(least=max(below) + 1 if below else plan.rows)


def _inputs(config: ModelConfig, calling: Calling, found: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Those of the configuration, or else of the file, without the batch dimension."""
    skipped = 1 if config.max_batch_size else 0
    told = [TensorSpec(t.name, t.datatype, t.dims if t.reshape is None else t.reshape) for t in config.inputs]
    own = [TensorSpec(calling.names.get(t.name, t.name), t.datatype, t.shape[skipped:]) for t in found]
    if not (told or own):
        raise ValueError("its inputs are not known: list them in config.pbtxt")
    return told or own


def _signature(inputs: Sequence[TensorSpec], told: Mapping[str, Shape]) -> Signature:
    made = []
    for name, datatype, declared, _ in inputs:
        dims = tuple(told.get(name, declared))
        if any(size < 0 for size in dims):
            raise ValueError(f"input '{name}' has dims {list(dims)}: say its sizes in optimization.cuda.graph_spec")
        made.append((name, datatype, dims))
    return tuple(sorted(made))


def signature_of(inputs: Inputs, batched: bool) -> Signature:
    skipped = 1 if batched else 0
    return tuple(sorted((name, datatype, array.shape[skipped:]) for name, (datatype, array) in inputs.items()))


def choose(captured: Iterable[Plan], rows: int) -> Plan | None:
    """The smallest that has room for all rows and may be used for so few."""
    return min((plan for plan in captured if plan.least <= rows <= plan.rows), default=None)


class Graph(NamedTuple):
    """Captured. `run` by copying inputs to `inputs` and calling `replay`; then the results are in `outputs`."""

    plan: Plan
    inputs: "Values"
    outputs: "Values"
    replay: Callable[[], None]


class Graphs:
    """All graphs of one instance: they share static inputs and one pool of memory, for one runs at a time."""

    def __init__(self, batched: bool) -> None:
        self._batched = batched
        self._graphs: dict[Signature, dict[Plan, Graph]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def fitting(self, inputs: Inputs, rows: int) -> Graph | None:
        """The graph that answers so many rows of these inputs; None: they run eagerly."""
        if not self._graphs:
            return None
        own = self._graphs.get(signature_of(inputs, self._batched), {})
        plan = choose(own, rows)
        return None if plan is None else own[plan]

    def capture(self, wanted: Sequence[Plan], compute: "Compute", stream: "torch.cuda.Stream", model: str) -> None:
        """As many as can be. What cannot be captured runs eagerly, which one line of the log says."""
        import torch

        pool = torch.cuda.graph_pool_handle()
        static: dict[Signature, Values] = {}
        for plan in wanted:
            try:
                whole = static[plan.signature] = static.get(plan.signature) or _buffers(plan, stream.device)
                inputs = {name: value[: plan.rows] if plan.rows else value for name, value in whole.items()}
                graph = captured(plan, inputs, compute, stream, pool)
            except Exception as error:  # whatever the module does that a graph cannot hold
                with WHOLE_DEVICE:
                    torch.cuda.synchronize(stream.device)
                message = f"model '{model}' runs eagerly: it cannot be captured as a CUDA graph ({first_line(error)})"
                log("graphs.failed", message, level="WARNING", model=model, rows=plan.rows)
                return
            self._graphs.setdefault(plan.signature, {})[graph.plan] = graph
            wait_at_most(SWITCH_S)


def _buffers(plan: Plan, device: "torch.device") -> "Values":
    import torch

    from pilotlight_predictor.backends.torch_tensors import dtype_of

    front = (plan.rows,) if plan.rows else ()
    return {
        name: torch.zeros((*front, *dims), dtype=dtype_of(datatype), device=device)
        for name, datatype, dims in plan.signature
    }


def captured(plan: Plan, inputs: "Values", compute: "Compute", stream: "torch.cuda.Stream", pool: Any) -> Graph:
    """The stream is the current one already. Others may use the GPU meanwhile, hence thread_local; but not wait for all
    of it, nor capture too: torch's random generator, which all threads share, is part of one capture at a time."""
    import torch

    for _ in range(WARM_UPS):
        compute(inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with WHOLE_DEVICE, _uncollected(), _random_as_it_was(stream.device):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            outputs = compute(inputs)
        except BaseException:
            _abandon(graph, stream, pool)
            raise
        graph.capture_end()
    cut = all(value.ndim and value.shape[0] == plan.rows for value in outputs.values())
    return Graph(plan if cut else plan._replace(least=plan.rows), inputs, outputs, graph.replay)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """A collection might find weights of another model that nobody has any more, whose end waits for the device."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _random_as_it_was(device: "torch.device") -> Iterator[None]:
    """After a capture that failed torch takes random numbers for those of a graph, and refuses them to everybody."""
    import torch

    generator = torch.cuda.default_generators[device.index]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        raise


def _abandon(graph: "torch.cuda.CUDAGraph", stream: "torch.cuda.Stream", pool: Any) -> None:
    """Ends a capture that failed. CUDA says so once more, and torch may leave its allocator in the pool then.

    Whatever is said here hides nothing: the failure itself is told.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        graph.capture_end()
    with contextlib.suppress(RuntimeError, AttributeError, TypeError):
        torch._C._cuda_endAllocateToPool(stream.device.index, pool)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
