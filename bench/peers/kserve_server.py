"""KServe's own Python model server with a custom model, as its guide shows it: kserve_server.py PORT NAME=FILE…"""
# mypy: ignore-errors

import sys

import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class OnnxModel(Model):
    """One ONNX file. gRPC, latency log and access log are off: only the HTTP path is compared."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.path = path
        self.load()

    def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.path, options)
        self.ready = True
        return self.ready

    def predict(self, payload: InferRequest, headers: object = None, response_headers: object = None) -> InferResponse:
        y = self.session.run(None, {"x": payload.inputs[0].as_numpy()})[0]
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=False)
        return InferResponse(response_id=payload.id or "0", model_name=self.name, infer_outputs=[output])


if __name__ == "__main__":
    port, *models = sys.argv[1:]
    server = ModelServer(http_port=int(port), enable_grpc=False, workers=1, enable_latency_logging=False)
    server.start([OnnxModel(*model.split("=", 1)) for model in models])
