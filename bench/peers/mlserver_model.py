"""A custom MLServer runtime: one ONNX file, named by `uri` in model-settings.json."""
# mypy: ignore-errors

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri


class OnnxModel(MLModel):
    """Runs in the server's own process (parallel_workers 0), which is fastest on one core."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(await get_model_uri(self.settings), options)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        y = self.session.run(None, {"x": NumpyCodec.decode_input(payload.inputs[0])})[0]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
