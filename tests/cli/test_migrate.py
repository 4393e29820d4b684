"""migrate triton: what it writes deploys, and what will differ is named."""

import shutil
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import ROOT, Call

PBTXT = 'name: "{name}" backend: "{backend}" max_batch_size: 8 {more}\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples/iris/repository", tmp_path / "models")
    (tmp_path / "models/iris/1").mkdir()
    shutil.copy(ROOT / "examples/iris/model.onnx", tmp_path / "models/iris/1")
    return tmp_path / "models"


def add_model(repository: Path, name: str, backend: str, more: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(PBTXT.format(name=name, backend=backend, more=more))


def test_a_command_line_becomes_a_service_that_is_valid(call: Call, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    flags = ["--model-repository", str(repository), "--http-port=8000", "--model-control-mode", "explicit"]
    flags += ["--load-model=iris", "--http-thread-count=8", "--http-restricted-api=trace:key=value", "--log-verbose=1"]
    flags += ["--grpc-keepalive-time=5000"]
    done = call("migrate", "triton", str(repository), *flags, "--to", str(file), "--name", "flowers")
    assert done.code == 0, done.err
    service = yaml.safe_load(file.read_text())
    model = service["spec"]["predictor"]["model"]
    assert (service["metadata"]["name"], model["modelFormat"]["name"]) == ("flowers", "triton")
    assert model["args"] == [
        "--compat=triton", "--model-control-mode=explicit", "--load-model=iris",
        "--http-restricted-api=trace:key=value", "--log-verbose=1", "--grpc-keepalive-time=5000",
    ]  # fmt: skip
    assert model["protocolVersion"] == "grpc-v2"
    assert "differs: --http-port: clients use the addresses of the service" in done.err
    assert "differs: protocolVersion: grpc-v2: here the service has HTTP and gRPC, on a cluster gRPC alone" in done.err
    assert "differs: --grpc-keepalive-time: it holds between the gateway or ingress and a replica" in done.err
    assert "differs: --http-thread-count has no effect: one event loop" in done.err
    assert "differs: --load-model: calls to the model repository need the token of --admin-token-file" in done.err
    assert call("validate", "-f", str(file)).code == 0


@pytest.mark.parametrize(
    "command", ["--model-repository={}", "--model-store {}/", "tritonserver --model-repository {}", "{}"]
)
def test_the_repository_may_be_that_of_the_command_line(call: Call, repository: Path, command: str) -> None:
    done = call("migrate", "triton", *command.format(repository).split(), "--http-port", "8000", "--to", "-")
    assert done.code == 0, done.err
    model = yaml.safe_load(done.out)["spec"]["predictor"]["model"]
    assert (Path(model["storageUri"]), model["args"]) == (repository, ["--compat=triton"])
    assert "platformctl explain -f FILE " in done.out


def test_without_grpc_the_service_has_http_alone(call: Call, repository: Path) -> None:
    done = call("migrate", "triton", str(repository), "--allow-grpc", "false", "--to", "-")
    assert done.code == 0, done.err
    assert "protocolVersion" not in done.out + done.err


def test_models_that_will_not_load_or_ignore_fields_are_named(call: Call, repository: Path) -> None:
    add_model(repository, "trees", "fil")
    add_model(repository, "ragged", "onnxruntime", 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" }')
    add_model(repository, "wide", "onnxruntime", "instance_group { kind: KIND_GPU rate_limiter { priority: 1 } }")
    done = call("migrate", "triton", str(repository), "--to", "-")
    assert done.code == 0, done.err
    assert "model 'trees' will not load: there is no backend 'fil'" in done.err
    assert "model 'ragged' will not load" in done.err
    assert "model 'wide': instance_group.rate_limiter have no effect" in done.err
    limits = yaml.safe_load(done.out)["spec"]["predictor"]["model"]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"


def test_a_model_to_load_that_the_repository_does_not_have_is_named(call: Call, repository: Path) -> None:
    explicit = ("migrate", "triton", str(repository), "--to", "-", "--model-control-mode=explicit")
    done = call(*explicit, "--load-model=iris", "--load-model=nosuch")
    assert "differs: --load-model=nosuch ends the start: the repository has no model 'nosuch'" in done.err
    assert done.err.count("ends the start") == 1
    assert "ends the start" not in call(*explicit, "--load-model=*").err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--nix=1"], "--nix: is not a flag"),
        (["--grpc-use-ssl=true"], "--grpc-use-ssl: is not supported"),
        (["--model-repository=/other"], "/other are 2 repositories; a service has one"),
        (["word"], "word is no flag of tritonserver"),
        (["--http-restricted-api=trace,health:k=v"], "group health would refuse the probes of the platform"),
        (["--rate-limit=nix"], "--rate-limit: rate-limit = nix"),
    ],
)
def test_a_mistake_in_the_flags_is_refused(call: Call, repository: Path, flags: list[str], problem: str) -> None:
    done = call("migrate", "triton", str(repository), *flags, "--to", "-")
    assert done.code == 2
    assert problem in done.err


def test_a_folder_that_does_not_exist_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text("mine")
    done = call("migrate", "triton", str(tmp_path / "none"), "--to", str(tmp_path / "service.yaml"))
    assert (done.code, done.out) == (2, "")
    assert "none is not a directory" in done.err
    assert "the model repository is missing" in call("migrate", "triton", "--http-port=8000").err


def test_a_file_in_a_folder_that_does_not_exist_is_refused(call: Call, repository: Path, tmp_path: Path) -> None:
    done = call("migrate", "triton", str(repository), "--to", str(tmp_path / "none/service.yaml"))
    assert done.code == 2
    assert "none is no folder; create it" in done.err


def test_a_file_is_not_overwritten(call: Call, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text("mine")
    assert call("migrate", "triton", str(repository), "--to", str(tmp_path / "service.yaml")).code == 2
    assert (tmp_path / "service.yaml").read_text() == "mine"
