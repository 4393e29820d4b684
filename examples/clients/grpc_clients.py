"""Call the iris model with every gRPC protocol, with clients generated at run time from the published protos.

Needs `pip install grpcio-tools` and a server with the iris model:
    python examples/build.py --only iris
    platformctl serve --model-repository examples/models
    python examples/clients/grpc_clients.py [HOST:PORT]
"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "protos"))

import grpc

FLOWER = [5.1, 3.5, 1.4, 0.2]


def by_v2(channel: grpc.Channel) -> list[float]:
    """inference.GRPCInferenceService, of KServe and Triton."""
    messages, services = grpc.protos_and_services("inference/service.proto")
    request = messages.ModelInferRequest(model_name="iris")
    x = request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    x.contents.fp32_contents.extend(FLOWER)
    answer = services.GRPCInferenceServiceStub(channel).ModelInfer(request)
    return list(answer.outputs[0].contents.fp32_contents)


def by_trtis(channel: grpc.Channel) -> list[float]:
    """nvidia.inferenceserver.GRPCService, of TensorRT Inference Server: the flower twice on one stream, as classes."""
    messages, services = grpc.protos_and_services("trtis.proto")
    header = messages.InferRequestHeader(batch_size=1)
    header.input.add(name="x", byte_size=16)
    header.output.add(name="y", byte_size=12).cls.count = 3
    row = struct.pack("<4f", *FLOWER)
    request = messages.InferRequest(model_name="iris", meta_data=header, raw_input=[row])
    answers = list(services.GRPCServiceStub(channel).StreamInfer(iter([request, request])))
    classes = sorted(answers[-1].meta_data.output[0].batch_classes[0].cls, key=lambda each: each.idx)
    return [each.value for each in classes]


def by_predict(channel: grpc.Channel) -> list[float]:
    """InferenceService, of the serving capability."""
    messages, services = grpc.protos_and_services("predict.proto")
    stub = services.InferenceServiceStub(channel)
    answer = stub.Predict(messages.PredictRequest(inputs=FLOWER), metadata=[("x-model-name", "iris")])
    return list(answer.predictions)


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
    with grpc.insecure_channel(address) as channel:
        for ask in (by_v2, by_trtis, by_predict):
            shares = ", ".join(f"{share:.3f}" for share in ask(channel))
            print(f"{ask.__name__.removeprefix('by_'):8} {shares}")


if __name__ == "__main__":
    main()
