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
    done = call("migrate", "triton", str(repository), *flags, "--to", str(file), "--name", "flowers")
    assert done.code == 0, done.err
    service = yaml.safe_load(file.read_text())
    model = service["spec"]["predictor"]["model"]
    assert (service["metadata"]["name"], model["modelFormat"]["name"]) == ("flowers", "triton")
    assert model["args"] == [
        "--compat=triton", "--model-control-mode=explicit", "--load-model=iris",
        "--http-restricted-api=trace:key=value", "--log-verbose=1",
    ]  # fmt: skip
    assert "differs: --http-port: clients use the address of the service" in done.err
    assert "differs: --http-thread-count has no effect: one event loop" in done.err
    assert "differs: --load-model: calls that load or unload a model reach one replica" in done.err
    assert call("validate", "-f", str(file)).code == 0


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


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--nix=1"], "--nix: is not a flag"),
        (["--grpc-use-ssl=true"], "--grpc-use-ssl: is not supported"),
        (["--model-repository=/other"], "/other is a second repository"),
        (["word"], "word is no flag of tritonserver"),
        (["--rate-limit=nix"], "--rate-limit: rate-limit = nix"),
    ],
)
def test_a_mistake_in_the_flags_is_refused(call: Call, repository: Path, flags: list[str], problem: str) -> None:
    done = call("migrate", "triton", str(repository), *flags, "--to", "-")
    assert done.code == 2
    assert problem in done.err


def test_a_folder_that_does_not_exist_is_refused(call: Call, tmp_path: Path) -> None:
    done = call("migrate", "triton", str(tmp_path / "none"), "--to", "-")
    assert (done.code, done.out) == (2, "")


def test_a_file_is_not_overwritten(call: Call, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text("mine")
    assert call("migrate", "triton", str(repository), "--to", str(tmp_path / "service.yaml")).code == 2
    assert (tmp_path / "service.yaml").read_text() == "mine"
