"""Health, reflection, and that the published protos are what is served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from protos import descriptors
from tests.onnx_models import write_identity, write_python
from tests.predictor.frontends.grpc.conftest import Caller, grpc_address
from tests.serving import RunningServer

from pilotlight_predictor.core.message_types import FILE

CHECK, CHECKED = "/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse"
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
Message = Callable[..., Any]


def ask(message: Message, service: str = "") -> Any:
    return message("grpc.health.v1.HealthCheckRequest", service=service)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "grpc.health.v1.Health", "add_sub"])
def test_the_server_its_services_and_its_models_are_serving(caller: Caller, message: Message, service: str) -> None:
    assert caller(CHECK, CHECKED, ask(message, service)).status == SERVING


def test_a_service_that_nobody_knows_is_not_found(caller: Caller, message: Message) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        caller(CHECK, CHECKED, ask(message, "nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_all_statuses_are_listed(caller: Caller) -> None:
    listed = caller("/grpc.health.v1.Health/List", "grpc.health.v1.HealthListResponse", b"").statuses
    assert listed[""].status == listed["add_sub"].status == listed["inference.GRPCInferenceService"].status == SERVING


def test_who_watches_a_model_hears_that_it_comes_and_goes(
    serve: Callable[..., RunningServer], tmp_path: Path, caller_of: Callable[[str], Caller], message: Message
) -> None:
    write_identity(tmp_path, "late", "FP32")
    server = serve(tmp_path, "--grpc-port", "0", "--model-control-mode", "explicit")
    heard = caller_of(grpc_address(server)).stream("/grpc.health.v1.Health/Watch", CHECKED, [ask(message, "late")])
    assert next(heard).status in (NOT_SERVING, UNKNOWN)
    server.post("/v2/repository/models/late/load")
    assert next(heard).status == SERVING
    server.post("/v2/repository/models/late/unload")
    assert next(heard).status == NOT_SERVING
    server.process.terminate()
    assert list(heard) == []
    assert server.process.wait(60) == 0


SLOW = """
import pathlib
import time

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}
while not (pathlib.Path(__file__).parents[2] / "go").exists():
    time.sleep(0.02)


def predict(x):
    return {"y": x}
"""


def test_a_long_load_is_told_of_over_grpc(
    serve: Callable[..., RunningServer], tmp_path: Path, caller_of: Callable[[str], Caller], message: Message
) -> None:
    write_python(tmp_path, "slow", SLOW)
    server = serve(tmp_path, "--grpc-port", "0", ready=False)
    caller = caller_of(grpc_address(server))
    assert caller(CHECK, CHECKED, ask(message)).status == NOT_SERVING
    request = message("inference.ModelInferRequest", model_name="slow").SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        caller("/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse", request)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND)
    (tmp_path / "go").touch()
    server.wait_until(lambda: caller(CHECK, CHECKED, ask(message)).status == SERVING, "serving")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_services_and_messages(caller: Caller, message: Message, version: str) -> None:
    package = f"grpc.reflection.{version}"
    asked = [{"list_services": "*"}, {"file_containing_symbol": "inference.GRPCInferenceService"},
             {"file_by_filename": "nobody.proto"}]  # fmt: skip
    requests = [message(f"{package}.ServerReflectionRequest", **each) for each in asked]
    path, answer = f"/{package}.ServerReflection/ServerReflectionInfo", f"{package}.ServerReflectionResponse"
    services, files, unknown = caller.stream(path, answer, requests)
    names = [each.name for each in services.list_services_response.service]
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(names)
    pool = descriptor_pool.DescriptorPool()
    for raw in reversed(files.file_descriptor_response.file_descriptor_proto):
        pool.AddSerializedFile(raw)
    assert pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelInfer")
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_the_published_protos_are_what_the_server_reads() -> None:
    """`make protos` writes the types."""
    assert FILE.read_text() == descriptors.text()
