"""The clients on the page run as they stand there."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.onnx_models import write_identity
from tests.predictor.frontends.grpc.conftest import PROTOS, grpc_address
from tests.predictor.frontends.grpc.test_statuses import every
from tests.serving import RunningServer

from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.grpc import services

PAGE = page_section("docs/reference/http-api.md", "V2 over gRPC")
CLIENTS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = (
    "[[5.1 3.5 1.4 0.2]\n [6.7 3.  5.2 2.3]]",
    "[5.099999904632568, 3.5, 1.399999976158142, 0.20000000298023224]",
)


@pytest.fixture(scope="module")
def address(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> str:
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "iris", "FP32", ("batch", 4), "max_batch_size: 8")
    return grpc_address(serve_module(repository, "--grpc-port", "0"))


@pytest.mark.parametrize(("client", "printed"), list(zip(CLIENTS, PRINTED, strict=True)), ids=["triton", "protos"])
def test_a_client_of_the_page_is_answered(address: str, client: str, printed: str, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(client.replace("127.0.0.1:8081", address))
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.append({str(PROTOS)!r}); exec(open({str(script)!r}).read())",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == printed, done.stderr[-3000:]


def test_the_page_names_every_method_and_status() -> None:
    told_here = ("inference.GRPCInferenceService", "grpc.health.v1.Health")
    methods = {method.name for service in services() if service.name in told_here for method in service.methods}
    statuses = {kind.grpc_status for kind in every(PredictorError)}
    assert {f"`{name}`" for name in methods | statuses} <= set(re.findall(r"`\w+`", PAGE))
