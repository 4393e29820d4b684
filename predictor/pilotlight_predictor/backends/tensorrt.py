"""TensorRT engines (`model.plan`), with the tensorrt extra, on a GPU only. torch provides device memory and streams.

An engine is built for one GPU and one version of TensorRT: cc_model_filenames selects the file by compute capability.
Clones share the engine; each has its own execution context and stream.
"""

from collections.abc import Sequence
from typing import Any

from pilotlight.wire.environments.install_command import install_command
from pilotlight_predictor.backends.base import LoadSpec, TensorInstance
from pilotlight_predictor.backends.torch.tensors import PinnedStaging, dtype_of, from_torch, run_or_halve
from pilotlight_predictor.core.requests import Inputs, Outputs
from pilotlight_predictor.core.tensors import Shape, TensorSpec
from pilotlight_predictor.errors import BackendFailed, BadRequest, LoadFailed

_DATATYPES = {
    "BOOL": "BOOL", "UINT8": "UINT8", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64", "HALF": "FP16",
    "BF16": "BF16", "FLOAT": "FP32",
}  # fmt: skip


class TensorRTInstance(TensorInstance):
    def __init__(
        self, spec: LoadSpec, engine: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        import torch

        self._spec, self._engine = spec, engine
        self._device = torch.device(str(spec.device))
        self._stream = torch.cuda.Stream(self._device)
        self._context = engine.create_execution_context()
        self._staging = PinnedStaging()
        self.inputs, self.outputs = inputs, outputs

    def run(self, inputs: Inputs) -> Outputs:
        return run_or_halve(
            self._run, inputs, model=self._spec.config.name, batched=self._spec.config.max_batch_size > 0
        )

    def clone(self) -> "TensorRTInstance":
        return TensorRTInstance(self._spec, self._engine, self.inputs, self.outputs)

    def close(self) -> None:
        del self._context, self._engine, self._staging

    def _run(self, inputs: Inputs) -> Outputs:
        import torch

        with torch.cuda.stream(self._stream):
            references = [self._bind_input(name, tensor) for name, tensor in inputs.items()]
            results = {spec.name: self._bind_output(spec) for spec in self.outputs}
            if not self._context.execute_async_v3(self._stream.cuda_stream):
                raise BackendFailed(f"model {self._spec.config.name!r} failed: TensorRT's own log has the reason")
            on_host = {name: result.to("cpu", non_blocking=True) for name, result in results.items()}
        self._stream.synchronize()
        del references  # the engine reads the inputs until the stream is synchronised
        return {spec.name: from_torch(on_host[spec.name], spec.datatype) for spec in self.outputs}

    def _bind_input(self, name: str, tensor: Any) -> Any:
        value = self._staging.to_device(name, tensor, self._device)
        if not self._context.set_input_shape(name, tuple(value.shape)):
            raise BadRequest(f"input {name!r} has shape {list(value.shape)}, which no optimisation profile covers")
        self._context.set_tensor_address(name, value.data_ptr())
        return value

    def _bind_output(self, spec: TensorSpec) -> Any:
        import torch

        shape: Shape = tuple(self._context.get_tensor_shape(spec.name))
        if any(dim < 0 for dim in shape):
            raise BackendFailed(f"output {spec.name!r} has a data-dependent size, which is not supported")
        value = torch.empty(shape, dtype=dtype_of(spec.datatype), device=self._device)
        self._context.set_tensor_address(spec.name, value.data_ptr())
        return value


def load(spec: LoadSpec) -> TensorRTInstance:
    try:
        import tensorrt as trt
        import torch
    except ImportError:
        raise LoadFailed(f"tensorrt_plan needs the tensorrt extra: {install_command('tensorrt')}") from None
    if spec.device.kind != "cuda" or not torch.cuda.is_available():
        raise LoadFailed(
            f"a tensorrt_plan runs on a GPU only, but device = {spec.device}: serve the ONNX model instead"
        )
    torch.cuda.set_device(spec.device.index)
    runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
    engine = runtime.deserialize_cuda_engine(spec.path.read_bytes())
    if engine is None:
        raise LoadFailed(
            f"{spec.path.name} is not an engine for TensorRT {trt.__version__} on this GPU: build it here, or name one "
            "per compute capability in cc_model_filenames"
        )
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        (inputs if is_input else outputs).append(_spec(engine, name))
    return TensorRTInstance(spec, engine, inputs, outputs)


def _spec(engine: Any, name: str) -> TensorSpec:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise LoadFailed(f"tensor {name!r} is {kind}, which has no V2 datatype")
    return TensorSpec(name, _DATATYPES[kind], tuple(int(dim) for dim in engine.get_tensor_shape(name)))
