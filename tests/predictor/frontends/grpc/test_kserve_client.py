"""KServe's own gRPC client and messages as the judge, in a process of their own: they cannot stand beside Triton's."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import ROOT, RunningServer

pytestmark = pytest.mark.skipif(find_spec("kserve") is None, reason="the kserve extra is not installed")

CLIENT = """
    import asyncio, sys
    import grpc, numpy as np
    from kserve import InferenceGRPCClient, InferInput, InferRequest
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages, grpc_predict_v2_pb2_grpc as stubs
    import pilotlight_predictor.core.protobuf_codec as ours
    from pilotlight_predictor.protocols.v2.grpc.infer_request import decode_infer

    def request(datatype, array, raw):
        tensor = InferInput("x", list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=raw)
        return InferRequest(model_name=f"identity_{datatype.lower()}", infer_inputs=[tensor], request_id="q")

    async def main(address):
        async with InferenceGRPCClient(address) as client:
            assert await client.is_server_live() and await client.is_server_ready()
            assert await client.is_model_ready("identity_fp32")
            assert not await client.is_model_ready("nobody")
            arrays = {"FP32": np.array([1.5, 2], np.float32), "INT64": np.array([-1, 2]),
                      "UINT8": np.array([0, 255], np.uint8), "BOOL": np.array([True, False]),
                      "BYTES": np.array([b"a", b"bc"], object), "FP16": np.array([1, 2], np.float16)}
            for datatype, array in arrays.items():
                for raw in (True, False) if datatype != "FP16" else (True,):
                    asked = request(datatype, array, raw)
                    answer = await client.infer(asked)
                    assert answer.id == "q" and answer.model_name == asked.model_name, answer
                    back = answer.outputs[0].as_numpy()
                    assert np.array_equal(np.asarray(back), array), (datatype, raw, back)
            try:
                await client.infer(InferRequest(model_name="nobody", infer_inputs=[]))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.NOT_FOUND, error
            else:
                raise AssertionError("an unknown model answered")

    def plain(address):
        with grpc.insecure_channel(address) as channel:
            stub = stubs.GRPCInferenceServiceStub(channel)
            tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
            tensor.contents.fp32_contents.append(2.5)
            answer = stub.ModelInfer(messages.ModelInferRequest(model_name="identity_fp32", inputs=[tensor]))
            assert list(answer.outputs[0].contents.fp32_contents) == [2.5], answer
            unloaded = stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="identity_fp32"))
            assert unloaded.model_name == "identity_fp32" and unloaded.isUnloaded, unloaded
            loaded = stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="identity_fp32"))
            assert loaded.model_name == "identity_fp32" and loaded.isLoaded, loaded
            assert decode_infer(messages.ModelInferRequest(model_name="m").SerializeToString()).model == "m"
            assert ours.decode("inference.ModelReadyResponse", ours.encode("inference.ModelReadyResponse",
                               {"ready": True})) == {"ready": True}

    asyncio.run(main(sys.argv[1]))
    plain(sys.argv[1])
"""


def test_kserves_client_and_messages_are_served(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    names = ("FP32", "INT64", "UINT8", "BOOL", "BYTES", "FP16")
    for datatype in names:
        write_identity(tmp_path, f"identity_{datatype.lower()}", datatype)
    loads = [flag for name in names for flag in ("--load-model", f"identity_{name.lower()}")]
    server = serve(tmp_path, "--grpc-port", "0", "--model-control-mode", "explicit", *loads)
    command = [sys.executable, "-c", dedent(CLIENT), grpc_address(server)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_our_messages_stand_beside_tritons_in_one_process() -> None:
    code = """
        from pilotlight_predictor.frontends.grpc import services
        from pilotlight_predictor.core.message_types import proto_files
        assert proto_files() and services()
        import tritonclient.grpc as triton
        from pilotlight_predictor.core.protobuf_codec import decode
        request = triton.service_pb2.ModelReadyRequest(name="m")
        assert decode("inference.ModelReadyRequest", request.SerializeToString()) == {"name": "m"}
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
