"""Models that are told what sequence a request belongs to: one in Python that sums, ONNX ones with a state."""

from pathlib import Path

from tests.onnx_models import write_model, write_python

# For all but those that tell of idle ones: a busy machine may be silent for longer than the second of the default.
PATIENT = "max_sequence_idle_microseconds: 60000000"
# Keeps a sum per correlation id, as models written for Triton do, and tells its batch of correlation ids.
SUMS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        ids = [self.value(request, "CORRID") for request in requests]
        return [self.answer(request, ids) for request in requests]

    def value(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return tensor.as_numpy().ravel()[0]

    def answer(self, request, ids):
        number, key = self.value(request, "INPUT"), self.value(request, "CORRID")
        if not self.value(request, "READY"):
            return self.told(request, 0, ids)
        if number < 0:
            raise RuntimeError("told to fail")
        if self.value(request, "START"):
            self.sums[key] = 0
        self.sums[key] += number
        told = self.sums[key]
        if self.value(request, "END"):
            del self.sums[key]
        return self.told(request, told, ids)

    def told(self, request, number, ids):
        shape = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().shape
        output = pb_utils.Tensor("OUTPUT", np.full(shape, number, np.int32))
        batch = pb_utils.Tensor("BATCH", np.full(shape, ",".join(map(text, ids)), np.object_))
        return pb_utils.InferenceResponse([output, batch])


def text(key):
    return key.decode() if isinstance(key, bytes) else str(key)
"""
TENSORS = """
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "BATCH" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } }
"""
STATE = """
  state {
    input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "start" data_type: TYPE_INT32 dims: [ 1 ] %s }
  }
"""


def write_sums(
    repository: Path, name: str, strategy: str, rest: str = "max_batch_size: 4", kind: str = "UINT64"
) -> Path:
    """`strategy` is what stands in sequence_batching beside the controls."""
    block = f"sequence_batching {{ {strategy} {CONTROLS % f'TYPE_{kind}'} }}"
    return write_python(repository, name, SUMS, f'backend: "python" {rest} {TENSORS} {block}')


def write_stateful(repository: Path, name: str, strategy: str, initial: str = "zero_data: true", size: int = 4) -> Path:
    """INPUT + state → OUTPUT and the next state; no client sees the state."""
    dims = ("batch", 1) if size else (1,)
    nodes = [("Add", ["INPUT", "INPUT_STATE"], ["OUTPUT"]), ("Identity", ["OUTPUT"], ["OUTPUT_STATE"])]
    inputs, outputs = (
        dict.fromkeys(("INPUT", "INPUT_STATE"), ("INT32", dims)),
        dict.fromkeys(("OUTPUT", "OUTPUT_STATE"), ("INT32", dims)),
    )
    config = f"max_batch_size: {size} sequence_batching {{ {strategy} {STATE % initial} }}"
    return write_model(repository, name, nodes, inputs, outputs, config)
