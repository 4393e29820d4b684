"""CUDA graphs of a torch instance: which to capture, which one runs a batch, and how one is captured and replayed.

backend.py plans graphs if the configuration has `optimization { cuda { graphs: true } }` and captures them before the
first run. A replay launches the whole model at once instead of each kernel from Python, so the instance's thread needs
the GIL for microseconds per batch. A batch between two captured sizes runs as the larger one, cut to its rows.
"""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pilotlight_predictor.backends.base import first_line
from pilotlight_predictor.backends.torch.forward_signature import ForwardBinding
from pilotlight_predictor.core.requests import Inputs
from pilotlight_predictor.core.tensors import Shape, TensorSpec
from pilotlight_predictor.core.threads import limit_switch_interval
from pilotlight_predictor.gpu.cuda_driver import DEVICE_SYNC_LOCK
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.model_config import GraphSpec, ModelConfig

if TYPE_CHECKING:
    import torch

    Values = dict[str, torch.Tensor]
    Compute = Callable[[Values], Values]

WARMUP_RUNS: Final = 3  # before a capture: libraries select kernels and allocate workspaces in them
Signature = tuple[tuple[str, str, Shape], ...]  # (name, datatype, dims without the batch dimension) of each input


class GraphPlan(NamedTuple):
    """One graph for batches of `min_rows` to `rows` rows; both are 0 without a batch dimension."""

    rows: int
    min_rows: int
    signature: Signature


def default_sizes(max_batch_size: int, preferred: Sequence[int] = ()) -> list[int]:
    """Default batch sizes to capture: powers of two below the largest, the preferred ones and the largest."""
    powers = (1 << power for power in range(max_batch_size.bit_length()))
    return sorted({*(size for size in (*powers, *preferred) if size < max_batch_size), max_batch_size})


def plan_graphs(config: ModelConfig, binding: ForwardBinding, declared: Sequence[TensorSpec]) -> list[GraphPlan]:
    """Graphs to capture, the largest first, so that smaller ones reuse its memory.

    `declared` are the inputs of the model file. Raises ValueError with the reason if shapes are unknown.
    """
    if binding.scalars:
        raise ValueError(f"{', '.join(sorted(binding.scalars))} is a number to forward, which a graph would keep")
    inputs = _inputs(config, binding, declared)
    preferred = config.dynamic_batching.preferred_batch_size if config.dynamic_batching else ()
    specs = config.cuda_graphs or [GraphSpec(size) for size in default_sizes(config.max_batch_size, preferred)]
    plans = [GraphPlan(spec.rows, spec.min_rows, _signature(inputs, spec.dims)) for spec in specs]
    for index, plan in enumerate(plans):
        if not plan.min_rows:  # by default one more than the rows of the next smaller graph
            below = [other.rows for other in plans if other.signature == plan.signature and other.rows < plan.rows]
            plans[index] = plan._replace(min_rows=max(below) + 1 if below else plan.rows)
    return sorted(plans, key=lambda plan: plan.rows, reverse=True)


def _inputs(config: ModelConfig, binding: ForwardBinding, declared: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Inputs of the configuration, else of the file, without the batch dimension."""
    skipped = 1 if config.max_batch_size else 0
    configured = [TensorSpec(t.name, t.datatype, t.dims if t.reshape is None else t.reshape) for t in config.inputs]
    own = [TensorSpec(binding.names.get(t.name, t.name), t.datatype, t.shape[skipped:]) for t in declared]
    if not (configured or own):
        raise ValueError("its inputs are not known: list them in config.pbtxt")
    return configured or own


def _signature(inputs: Sequence[TensorSpec], overrides: Mapping[str, Shape]) -> Signature:
    signature = []
    for name, datatype, declared, *_ in inputs:
        dims = tuple(overrides.get(name, declared))
        if any(size < 0 for size in dims):
            raise ValueError(f"input '{name}' has dims {list(dims)}: set its sizes in optimization.cuda.graph_spec")
        signature.append((name, datatype, dims))
    return tuple(sorted(signature))


def signature_of(inputs: Inputs, batched: bool) -> Signature:
    skipped = 1 if batched else 0
    return tuple(sorted((name, datatype, array.shape[skipped:]) for name, (datatype, array) in inputs.items()))


def choose_plan(captured: Iterable[GraphPlan], rows: int) -> GraphPlan | None:
    """Smallest plan whose range includes `rows`; None if there is none."""
    return min((plan for plan in captured if plan.min_rows <= rows <= plan.rows), default=None)


class CapturedGraph(NamedTuple):
    """A captured graph: copy inputs to `inputs`, call `replay`, then read `outputs`."""

    plan: GraphPlan
    inputs: "Values"
    outputs: "Values"
    replay: Callable[[], None]


class CudaGraphs:
    """Graphs of one instance; they share static inputs and one memory pool, since one runs at a time."""

    def __init__(self, batched: bool) -> None:
        self._batched = batched
        self._graphs: dict[Signature, dict[GraphPlan, CapturedGraph]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._graphs.values()))

    def fitting(self, inputs: Inputs, rows: int) -> CapturedGraph | None:
        """Return the graph for these inputs and rows; None to run eagerly."""
        if not self._graphs:
            return None
        own = self._graphs.get(signature_of(inputs, self._batched), {})
        plan = choose_plan(own, rows)
        return None if plan is None else own[plan]

    def capture(self, plans: Sequence[GraphPlan], compute: "Compute", stream: "torch.cuda.Stream", model: str) -> None:
        """Capture the planned graphs; after a failure log it and run the rest eagerly."""
        import torch

        pool = torch.cuda.graph_pool_handle()
        static: dict[Signature, Values] = {}
        for plan in plans:
            try:
                whole = static[plan.signature] = static.get(plan.signature) or _buffers(plan, stream.device)
                inputs = {name: value[: plan.rows] if plan.rows else value for name, value in whole.items()}
                graph = capture_graph(plan, inputs, compute, stream, pool)
            except Exception as error:  # the module can raise anything during a capture
                with DEVICE_SYNC_LOCK:
                    torch.cuda.synchronize(stream.device)
                message = f"model '{model}' runs eagerly: it cannot be captured as a CUDA graph ({first_line(error)})"
                log("graphs.failed", message, level="WARNING", model=model, rows=plan.rows)
                return
            self._graphs.setdefault(plan.signature, {})[graph.plan] = graph
            limit_switch_interval()


def _buffers(plan: GraphPlan, device: "torch.device") -> "Values":
    import torch

    from pilotlight_predictor.backends.torch.tensors import dtype_of

    front = (plan.rows,) if plan.rows else ()
    return {
        name: torch.zeros((*front, *dims), dtype=dtype_of(datatype), device=device)
        for name, datatype, dims in plan.signature
    }


def capture_graph(
    plan: GraphPlan, inputs: "Values", compute: "Compute", stream: "torch.cuda.Stream", pool: Any
) -> CapturedGraph:
    """Capture on `stream`, which must be the current one.

    Other threads may use the GPU, hence thread_local, but must not synchronise the device or capture at the same time:
    torch's random generator, shared by all threads, can be part of one capture only.
    """
    import torch

    for _ in range(WARMUP_RUNS):
        compute(inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with DEVICE_SYNC_LOCK, _gc_disabled(), _generator_restored(stream.device):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            outputs = compute(inputs)
        except BaseException:
            _abort_capture(graph, stream, pool)
            raise
        graph.capture_end()
    cut = all(value.ndim and value.shape[0] == plan.rows for value in outputs.values())
    return CapturedGraph(plan if cut else plan._replace(min_rows=plan.rows), inputs, outputs, graph.replay)


@contextlib.contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable gc: freeing another model's weights would synchronise the device and break the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _generator_restored(device: "torch.device") -> Iterator[None]:
    """Restore the random generator after a failed capture, which leaves it unusable outside of graphs."""
    import torch

    generator = torch.cuda.default_generators[device.index]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        raise


def _abort_capture(graph: "torch.cuda.CUDAGraph", stream: "torch.cuda.Stream", pool: Any) -> None:
    """End a failed capture, and the allocation to its pool, which torch may leave active.

    Errors are suppressed: the caller raises the original failure.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        graph.capture_end()
    with contextlib.suppress(RuntimeError, AttributeError, TypeError):
        torch._C._cuda_endAllocateToPool(stream.device.index, pool)
