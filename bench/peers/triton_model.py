"""A model of Triton's Python backend: runs the ONNX file named in config.pbtxt on the batch that Triton made."""
# mypy: ignore-errors

import json
import os
import sys

# Triton's stub embeds an interpreter that knows neither the virtual environment nor PYTHONPATH.
sys.path[:0] = os.environ["BENCH_SITE_PACKAGES"].split(os.pathsep)

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import triton_python_backend_utils as pb  # noqa: E402


class TritonPythonModel:
    """One run for all requests of a batch, then one slice of the result for each."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(config["parameters"]["onnx"]["string_value"], options)

    def execute(self, requests: list) -> list:
        rows = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        y = self.session.run(None, {"x": rows[0] if len(rows) == 1 else np.concatenate(rows)})[0]
        if len(rows) == 1:
            return [pb.InferenceResponse([pb.Tensor("y", y)])]
        cuts = np.cumsum([len(row) for row in rows])[:-1]
        return [pb.InferenceResponse([pb.Tensor("y", part)]) for part in np.split(y, cuts)]
