"""PyTorch models, on the CPU or on one GPU with a stream of its own per instance.

Reading the file is torch_modules.py, names are torch_signature.py, arrays are torch_tensors.py, a full GPU is
halving.py; here they meet: load, run one batch, clone.
"""

import re
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final

from pilotlight_predictor.backends.base import LoadSpec, TensorInstance
from pilotlight_predictor.backends.halving import run_or_halve
from pilotlight_predictor.backends.torch_modules import Loaded, read
from pilotlight_predictor.backends.torch_signature import Calling, bind, name_outputs, rename_outputs
from pilotlight_predictor.backends.torch_tensors import TORCH_NAMES, PinnedStaging, from_torch, to_torch
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed, PredictorError
from pilotlight_predictor.inference import Inputs, Outputs
from pilotlight_predictor.tensors import Tensor

if TYPE_CHECKING:
    import torch

_RAISED: Final = "builtins.ValueError: "
# How torch words a tensor that does not fit the module: that is the client's doing where the configuration says -1.
_MISFIT: Final = re.compile(
    r"shapes? cannot be multiplied|size mismatch|must match the size|Sizes of tensors must match|Expected \d+D"
    r"|[Ee]xpected .* (dim|shape|size|channels)|is invalid for input of size|Guard failed"
    r"|index out of range|Dimension out of range"
    rf"|^{re.escape(_RAISED)}"  # what the code of a TorchScript module itself raises about its input
)


class TorchInstance(TensorInstance):
    """One stream, one set of pinned buffers; the module and its weights are shared with the clones."""

    def __init__(self, spec: LoadSpec, loaded: Loaded, calling: Calling) -> None:
        import torch

        self._spec, self._loaded, self._calling = spec, loaded, calling
        self._device = torch.device(str(spec.device))
        self._out_names = [output.name for output in spec.config.outputs or loaded.outputs]
        self._declared = {output.name: output.datatype for output in spec.config.outputs or loaded.outputs}
        self._undeclared = not (spec.config.inputs or loaded.inputs)
        self._batched = spec.config.max_batch_size > 0 or loaded.batchable
        self._staging = PinnedStaging()
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._clean = _flag(spec, "ENABLE_CACHE_CLEANING")
        self.inputs = [tensor._replace(name=calling.names.get(tensor.name, tensor.name)) for tensor in loaded.inputs]
        self.outputs = rename_outputs(loaded.outputs, self._out_names)

    def run(self, inputs: Inputs) -> Outputs:
        import torch

        if self._undeclared:
            self._calling.check(inputs)
        try:
            return run_or_halve(
                self._forward,
                inputs,
                model=self._spec.config.name,
                batched=self._batched,
                out_of_memory=torch.OutOfMemoryError,
                recover=torch.cuda.empty_cache,
            )
        except PredictorError:
            raise
        except Exception as error:
            raise client_error(error) or BackendFailed(f"model {self._spec.config.name!r} failed") from error

    def clone(self) -> "TorchInstance":
        if self._loaded.source is not None:
            self._loaded.source.share()
        return TorchInstance(self._spec, self._loaded, self._calling)

    def close(self) -> None:
        import torch

        if self._loaded.source is not None:
            self._loaded.source.close()
        del self._loaded, self._staging
        if self._stream is not None:
            torch.cuda.empty_cache()

    def _forward(self, inputs: Inputs) -> Outputs:
        with self._context():
            arguments = {name: self._argument(name, tensor) for name, tensor in inputs.items()}
            named = name_outputs(self._calling.call(self._loaded.module, arguments), self._out_names)
            if self._stream is None:
                return {name: from_torch(value, self._declared.get(name, "")) for name, value in named.items()}
            return self._collect(named, self._stream)

    def _collect(self, named: dict[str, Any], stream: "torch.cuda.Stream") -> Outputs:
        """Copies start together and are awaited once, on this stream alone."""
        import torch

        on_host = {name: torch.as_tensor(value).to("cpu", non_blocking=True) for name, value in named.items()}
        stream.synchronize()
        if self._clean:
            torch.cuda.empty_cache()
        return {name: from_torch(value, self._declared.get(name, "")) for name, value in on_host.items()}

    def _argument(self, name: str, tensor: Tensor) -> Any:
        if name in self._calling.scalars:
            return _scalar(name, tensor)
        value = self._staging.to_device(name, tensor, self._device) if self._stream else to_torch(name, tensor)
        compute = self._loaded.compute
        return value.to(compute) if compute is not None and value.is_floating_point() else value

    def _context(self) -> AbstractContextManager[object]:
        import torch

        stack = ExitStack()
        stack.enter_context(torch.inference_mode() if _flag(self._spec, "INFERENCE_MODE", True) else torch.no_grad())
        if _flag(self._spec, "DISABLE_OPTIMIZED_EXECUTION"):
            stack.enter_context(torch.jit.optimized_execution(False))
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack


def prepare() -> None:
    """The slow part of a cold start, which a download leaves time for."""
    _import()


def load(spec: LoadSpec) -> TorchInstance:
    torch = _import()
    _check_device(torch, spec)
    _check_numeric(spec)
    threads = spec.threads or int(spec.config.parameters.get("INTRA_OP_THREAD_COUNT", 0))
    if threads and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    loaded = read(spec)
    calling = bind(loaded.arguments, [tensor.name for tensor in spec.config.inputs or loaded.inputs])
    if spec.device.kind == "cuda":
        torch.cuda.synchronize(spec.device.index)  # the weights came on the default stream, others will read them
    return TorchInstance(spec, loaded, calling)


def client_error(error: Exception) -> BadRequest | None:
    """A BadRequest with the line that says what does not fit, out of TorchScript's many if need be."""
    import torch

    if not isinstance(error, (RuntimeError, ValueError, IndexError, AssertionError, torch.jit.Error)):
        return None
    line = next((line.strip() for line in str(error).splitlines() if _MISFIT.search(line)), None)
    return None if line is None else BadRequest(f"the model refuses the input: {line.removeprefix(_RAISED)}")


def _import() -> Any:
    try:
        import torch
    except ImportError as error:
        raise LoadFailed(f"torch models need the torch extra: pip install 'pilotlight[torch]' ({error})") from None
    return torch


def _check_device(torch: Any, spec: LoadSpec) -> None:
    if spec.device.kind == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if spec.device.index >= count:
        raise LoadFailed(
            f"device = {spec.device}, but torch sees {count} CUDA devices here: set device: cpu, or check the driver "
            f"and CUDA_VISIBLE_DEVICES"
        )


def _check_numeric(spec: LoadSpec) -> None:
    for tensor in (*spec.config.inputs, *spec.config.outputs):
        if tensor.datatype not in TORCH_NAMES:
            raise LoadFailed(
                f"tensor {tensor.name!r} is {tensor.datatype}, but a torch model takes and gives numbers only"
            )


def _scalar(name: str, tensor: Tensor) -> Any:
    if tensor.array.size != 1:
        raise BadRequest(f"input {name!r} has shape {list(tensor.array.shape)}, must be a single number")
    return tensor.array.item()


def _flag(spec: LoadSpec, name: str, default: bool = False) -> bool:
    return spec.config.parameters.get(name, str(default)).lower() == "true"
