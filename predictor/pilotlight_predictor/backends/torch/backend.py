"""PyTorch backend, on the CPU or on one GPU with one stream per instance: load, run a batch, clone.

Files are read by modules.py, names are bound by forward_signature.py, arrays are converted by tensors.py, which also
recovers from out-of-memory; CUDA graphs are in cuda_graphs.py.
"""

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.base import Answer, LoadSpec, TensorInstance, import_library
from pilotlight_predictor.backends.torch.aot.libtorch import preload_torch
from pilotlight_predictor.backends.torch.cuda_graphs import CudaGraphs, plan_graphs
from pilotlight_predictor.backends.torch.forward_signature import ForwardBinding, bind, name_outputs, rename_outputs
from pilotlight_predictor.backends.torch.modules import LoadedModule, file_kind, load_module
from pilotlight_predictor.backends.torch.tensors import (
    TORCH_NAMES,
    PinnedStaging,
    from_torch,
    pinned_pieces,
    run_or_halve,
    to_declared_type,
    to_host,
    to_torch,
)
from pilotlight_predictor.core.batch import rows_of, split
from pilotlight_predictor.core.requests import InferRequest, Inputs, Outputs
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, fits, zeros
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed, PredictorError, ShapeMismatch
from pilotlight_predictor.gpu.cuda_driver import context_of
from pilotlight_predictor.observability.logs import log

if TYPE_CHECKING:
    import torch

    from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

_RAISED: Final = "builtins.ValueError: "
# torch's messages for a tensor that does not fit the module: a client error if the configuration has dynamic dims.
_MISFIT: Final = re.compile(
    r"shapes? cannot be multiplied|size mismatch|must match the size|Sizes of tensors must match|Expected \d+D"
    r"|[Ee]xpected .* (dim|shape|size|channels)|is invalid for input of size|Guard failed"
    r"|index out of range|Dimension out of range|[Kk]ernel size can't be greater|output size is too small"
    r"|scalar types?|same dtype|[Ii]nput type .* should be the same"
    rf"|^{re.escape(_RAISED)}"  # raised by the code of a TorchScript module
)
# Those of them that do not depend on values, the number of rows or a variable dimension that is too short.
_MISMATCH: Final = re.compile(
    r"shapes? cannot be multiplied|size mismatch|channels|scalar types?|same dtype|Input type"
)


class TorchInstance(TensorInstance):
    """One stream and one set of pinned buffers; clones share the module and its weights."""

    def __init__(self, spec: LoadSpec, loaded: LoadedModule, binding: ForwardBinding) -> None:
        import torch

        self._spec, self._loaded, self._binding = spec, loaded, binding
        self._device = torch.device(str(spec.device))
        self._out_names = [output.name for output in spec.config.outputs or loaded.outputs]
        self._declared = {output.name: output.datatype for output in spec.config.outputs or loaded.outputs}
        self.open_inputs = loaded.signature.sample is not None  # derived: the module itself refuses what does not fit
        self._batched = spec.config.max_batch_size > 0 or loaded.batchable
        self._staging = PinnedStaging()
        self.parking = loaded.parking
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._graphs: CudaGraphs | None = None
        self._empties_cache = _flag(spec, "ENABLE_CACHE_CLEANING")
        self.inputs = [tensor._replace(name=binding.names.get(tensor.name, tensor.name)) for tensor in loaded.inputs]
        self.outputs = rename_outputs(loaded.outputs, self._out_names)
        self.sample = _sample(loaded)

    def run(self, inputs: Inputs) -> Outputs:
        if self.open_inputs:
            self._binding.check(inputs)
        try:
            return run_or_halve(self._forward, inputs, model=self._spec.config.name, batched=self._batched)
        except PredictorError:
            raise
        except Exception as error:
            refused = client_error(error, self.sample)
            if refused is None and self.sample and not all(_fits(each, inputs[each.name]) for each in self.inputs):
                refused = BadRequest(f"the model rejects the input{_accepted(self.sample)}")
            raise refused or BackendFailed(f"model {self._spec.config.name!r} failed") from error

    def clone(self) -> "TorchInstance":
        if self._loaded.source is not None:
            self._loaded.source.share()
        return TorchInstance(self._spec, self._loaded, self._binding)

    def close(self) -> None:
        import torch

        if self._loaded.source is not None:
            self._loaded.source.close()
        del self._loaded, self._staging, self._graphs, self.parking
        if self._stream is not None:
            torch.cuda.empty_cache()

    def execute(self, batch: Sequence[InferRequest]) -> Sequence[Answer]:
        """Execute a batch; on a GPU its rows are merged directly in pinned memory, or by the GPU."""
        if self._stream is None or len(batch) == 1:
            return super().execute(batch)
        rows = [rows_of(request.inputs) for request in batch]
        outputs = self._replay_in_place(batch, sum(rows))
        return split(self.run(self._staging.merge(batch, sum(rows))) if outputs is None else outputs, rows)

    def _replay_in_place(self, batch: Sequence[InferRequest], rows: int) -> Outputs | None:
        """Replay a graph on rows that the GPU copies from the memory of fronts; None if they do not lie there."""
        if not self._graphs or self._stream is None:
            return None
        pieces = {n: pinned_pieces([each.inputs[n] for each in batch], self._device) for n in batch[0].inputs}
        graph = self._graphs.fitting(batch[0].inputs, rows) if all(pieces.values()) else None
        if graph is None:
            return None
        with self._context():
            for name, static in graph.inputs.items():
                context_of(self._device.index).copy_pinned(static.data_ptr(), pieces[name], self._stream.cuda_stream)
            graph.replay()
            return self._collect({name: value[:rows] for name, value in graph.outputs.items()}, self._stream)

    def _forward(self, inputs: Inputs) -> Outputs:
        with self._context():
            if self._stream is None:
                named = self._call({name: self._argument(name, tensor) for name, tensor in inputs.items()})
                return {name: from_torch(value, self._declared.get(name, "")) for name, value in named.items()}
            results = self._replay_graph(inputs)
            if results is None:
                results = self._compute({name: self._argument(name, tensor) for name, tensor in inputs.items()})
            return self._collect(results, self._stream)

    def _replay_graph(self, inputs: Inputs) -> "dict[str, torch.Tensor] | None":
        """Return the results of a captured graph, cut to the batch's rows; None if no graph fits."""
        graphs = self._graphs if self._graphs is not None else self._capture_graphs()
        rows = rows_of(inputs) if self._spec.config.max_batch_size else 0
        graph = graphs.fitting(inputs, rows)
        if graph is None:
            return None
        for name, tensor in inputs.items():
            static = graph.inputs[name]
            (static[:rows] if rows else static).copy_(self._staging.staged(name, tensor), non_blocking=True)
        graph.replay()
        return {name: value[:rows] if rows else value for name, value in graph.outputs.items()}

    def _capture_graphs(self) -> CudaGraphs:
        """Capture graphs, before the first run, which is the warm-up."""
        self._graphs = graphs = CudaGraphs(self._spec.config.max_batch_size > 0)
        if self._stream is not None and self._spec.config.cuda_graphs is not None:
            try:
                plans = plan_graphs(self._spec.config, self._binding, self._loaded.inputs)
            except ValueError as error:
                message = f"model '{self._spec.config.name}' runs without CUDA graphs: {error}"
                log("graphs.unused", message, level="WARNING", model=self._spec.config.name)
            else:
                graphs.capture(plans, self._compute, self._stream, self._spec.config.name)
        return graphs

    def _compute(self, arguments: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Computation on the GPU between the copies, which a graph captures."""
        named = self._call({name: self._cast(value) for name, value in arguments.items()})
        return {name: to_declared_type(value, self._declared.get(name, "")) for name, value in named.items()}

    def _call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return name_outputs(self._binding.call(self._loaded.module, arguments), self._out_names)

    def _collect(self, results: "dict[str, torch.Tensor]", stream: "torch.cuda.Stream") -> Outputs:
        """Start all copies to the host, then synchronise this stream once."""
        import torch

        on_host = to_host(results)
        stream.synchronize()
        if self._empties_cache:
            torch.cuda.empty_cache()
        return {name: from_torch(value, self._declared.get(name, "")) for name, value in on_host.items()}

    def _argument(self, name: str, tensor: Tensor) -> Any:
        if name in self._binding.scalars:
            if tensor.array.size != 1:
                raise BadRequest(f"input {name!r} has shape {list(tensor.array.shape)}, must be a single number")
            return tensor.array.item()
        if self._stream is not None:
            return self._staging.to_device(name, tensor, self._device)
        return self._cast(to_torch(name, tensor))

    def _cast(self, value: Any) -> Any:
        """Cast floating tensors to the dtype of the weights; scalars stay."""
        compute = self._loaded.compute
        if compute is None:
            return value
        import torch

        return value.to(compute) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def _context(self) -> AbstractContextManager[object]:
        import torch

        stack = ExitStack()
        stack.enter_context(torch.inference_mode() if _flag(self._spec, "INFERENCE_MODE", True) else torch.no_grad())
        if _flag(self._spec, "DISABLE_OPTIMIZED_EXECUTION"):
            stack.enter_context(torch.jit.optimized_execution(False))
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack


def alternative_backend(spec: LoadSpec) -> str:
    """Return `aot` if the model was compiled for this machine, else an empty string: torch runs it."""
    if spec.precision != "auto" or file_kind(spec.path) != "safetensors":
        return ""
    from pilotlight_predictor.backends.torch.aot.package_lookup import find_package

    package = find_package(spec.path, spec.device.kind, spec.device.index, spec.trusted_compiled)
    if isinstance(package, str):
        log("compiled.unused", f"{package}; torch runs the model", level="WARNING", model=spec.config.name)
    return "aot" if isinstance(package, tuple) else ""


def prefetch(spec: LoadSpec) -> "WeightTransfer | None":
    """Start the transfer of weights to the GPU; None if that needs torch itself, or a cast."""
    if spec.device.kind != "cuda" or spec.precision != "auto" or file_kind(spec.path) != "safetensors":
        return None
    from pilotlight_predictor.backends.torch.aot import early_start
    from pilotlight_predictor.gpu.safetensors_upload import WeightTransfer

    return (
        early_start.take_transfer(spec.path, spec.device.index)
        or WeightTransfer(spec.path, spec.device.index, "torch" not in sys.modules, spec.parkable).start()
    )


def prepare() -> None:
    _import()


def load(spec: LoadSpec) -> TorchInstance:
    torch = _import()
    _check_device(torch, spec)
    for tensor in (*spec.config.inputs, *spec.config.outputs):
        if tensor.datatype not in TORCH_NAMES:
            why = f"tensor {tensor.name!r} is {tensor.datatype}"
            raise LoadFailed(f"{why}, but a torch model has numeric inputs and outputs only")
    threads = spec.threads or int(spec.config.parameters.get("INTRA_OP_THREAD_COUNT", 0))
    if threads and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    loaded = load_module(spec)
    binding = bind(loaded.arguments, [tensor.name for tensor in spec.config.inputs or loaded.inputs])
    if spec.device.kind == "cuda":
        # The weights were copied on this stream; others read them.
        torch.cuda.current_stream(spec.device.index).synchronize()
    return TorchInstance(spec, loaded, binding)


def client_error(error: Exception, sample: Inputs | None = None) -> BadRequest | None:
    """Return a BadRequest with the line of the message that describes a misfit; None for other failures.

    `sample`: inputs that are known to run, named in the message.
    """
    import torch

    if not isinstance(error, (RuntimeError, ValueError, IndexError, AssertionError, torch.jit.Error)):
        return None
    line = next((line.strip() for line in str(error).splitlines() if _MISFIT.search(line)), None)
    if line is None:
        return None
    hint = _accepted(sample) if sample and "index out of range" not in line else ""
    kind = ShapeMismatch if _MISMATCH.search(line) and not line.startswith(_RAISED) else BadRequest
    return kind(f"the model rejects the input: {line.removeprefix(_RAISED)}{hint}")


def _accepted(sample: Inputs) -> str:
    shapes = (f"{name} {each.datatype} {list(each.array.shape)}" for name, each in sample.items())
    return f"; it accepts {', '.join(shapes)}"


def _fits(spec: TensorSpec, given: Tensor) -> bool:
    """Whether an input has the datatype and shape that were derived; a failure is then not the client's."""
    return given.datatype == spec.datatype and fits(given.array.shape, spec.shape)


def _sample(loaded: LoadedModule) -> Inputs | None:
    """Return zeros of derived inputs that run, for the warm-up; empty if none are known, None for declared inputs."""
    shapes = loaded.signature.sample
    if shapes is None:
        return None
    return {each.name: zeros(each.datatype, shapes[each.name]) for each in loaded.inputs if each.name in shapes}


def _import() -> Any:
    """Import torch, loading its libraries first without the GIL, so that other models keep running."""
    if "torch" not in sys.modules:
        preload_torch(cuda=False)  # includes those of CUDA if torch was built with it
    return import_library("torch", "torch models", "torch")


def _check_device(torch: Any, spec: LoadSpec) -> None:
    if spec.device.kind == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if spec.device.index >= count:
        raise LoadFailed(
            f"device = {spec.device}, but torch sees {count} CUDA devices here: set device: cpu, or check the driver "
            f"and CUDA_VISIBLE_DEVICES"
        )


def _flag(spec: LoadSpec, name: str, default: bool = False) -> bool:
    return spec.config.parameters.get(name, str(default)).lower() == "true"
