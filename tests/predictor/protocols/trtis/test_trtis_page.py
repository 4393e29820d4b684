"""docs/how-to/migrate-triton.md says what is so, and the image client classifies with a real model."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.onnx_models import write_model
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.protocols.trtis.routes import PROTOCOL

PAGE = page_section("docs/how-to/migrate-triton.md", "TensorRT Inference Server")
CLIENT = ROOT / "examples" / "clients" / "trtis_image_client.py"
WRITTEN_FOR = "http://127.0.0.1:8080"
COLOURS = """
max_batch_size: 4
input [ { name: "x" format: FORMAT_NCHW dims: [ 3, 8, 8 ] } ]
output [ { name: "y" dims: [ 3 ] label_filename: "labels.txt" } ]
"""
# The classifier that OCR asks which way up a line of text is.
WAY_UP = """
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 48, 192 ] } ]
output [ { name: "save_infer_model/scale_0.tmp_1" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" } ]
"""
HEADLINE = (159, 25, 330, 57)  # where it stands in the receipt


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    """iris, and a model that says which of red, green and blue a picture has most of."""
    repository = tmp_path_factory.mktemp("classifiers")
    shutil.copytree(ROOT / "examples" / "iris" / "repository", repository, dirs_exist_ok=True)
    (repository / "iris" / "1").mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples" / "iris" / "model.onnx", repository / "iris" / "1" / "model.onnx")
    nodes = [("GlobalAveragePool", ["x"], ["mean"]), ("Flatten", ["mean"], ["y"])]
    folder = write_model(
        repository, "colours", nodes, {"x": ("FP32", ("n", 3, 8, 8))}, {"y": ("FP32", ("n", 3))}, COLOURS
    )
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    return serve_module(repository, "--grpc-port", "0")


def client(served: RunningServer, *arguments: str) -> str:
    command = [sys.executable, str(CLIENT), "-u", served.url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("text", re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
def test_a_command_runs(served: RunningServer, text: str) -> None:
    script = text.replace(WRITTEN_FOR, served.url)
    assert served.url in script
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True, text=True, timeout=60, cwd=ROOT, env={"PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "setosa" in done.stdout or "MODEL_READY" in done.stdout


@pytest.mark.parametrize("text", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_a_program_runs(served: RunningServer, text: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    program = tmp_path / "example.py"
    port = served.wait_for_event("grpc.listening")["grpc_port"]
    assert "127.0.0.1:8081" in text
    program.write_text(text.replace("127.0.0.1:8081", f"127.0.0.1:{port}"))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout.split()[::2]) == (0, ["setosa", "virginica"]), done.stderr


def test_the_client_classifies_flowers(served: RunningServer) -> None:
    setosa, virginica = client(served, "-m", "iris", "-c", "2", "examples/iris/flowers.csv").splitlines()
    assert setosa.startswith("flowers.csv: 0 (setosa) = 0.999")
    assert virginica.startswith("flowers.csv: 2 (virginica) = 0.996")


@pytest.mark.parametrize("scaling", ["NONE", "INCEPTION", "VGG"])
def test_the_client_classifies_pictures(served: RunningServer, tmp_path: Path, scaling: str) -> None:
    image = pytest.importorskip("PIL.Image")
    for colour in ("red", "blue"):
        image.new("RGB", (20, 10), colour).save(tmp_path / f"{colour}.png")
    files = [str(tmp_path / "red.png"), str(tmp_path / "blue.png")]
    red, blue = client(served, "-m", "colours", "-s", scaling, *files).splitlines()
    assert red.startswith("red.png: 0 (red)")
    assert blue.startswith("blue.png: 2 (blue)")


def test_the_client_classifies_with_the_weights_of_a_real_network(
    tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    image = pytest.importorskip("PIL.Image")
    package = find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        pytest.skip("the models of the examples are not installed")
    (tmp_path / "way_up" / "1").mkdir(parents=True)
    (tmp_path / "way_up" / "config.pbtxt").write_text(WAY_UP)
    (tmp_path / "way_up" / "labels.txt").write_text("upright\nupside down\n")
    weights = Path(package.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    (tmp_path / "way_up" / "1" / "model.onnx").symlink_to(weights)
    with image.open(ROOT / "examples" / "read_text" / "receipt.png") as receipt:
        line = receipt.convert("RGB").crop(HEADLINE)
    line.save(tmp_path / "line.png")
    line.rotate(180).save(tmp_path / "turned.png")
    files = [str(tmp_path / "line.png"), str(tmp_path / "turned.png")]
    told = client(serve(tmp_path), "-m", "way_up", "-s", "INCEPTION", *files).splitlines()
    assert [text.partition(" =")[0] for text in told] == ["line.png: 0 (upright)", "turned.png: 1 (upside down)"]


def test_the_client_tells_what_the_server_refuses(served: RunningServer) -> None:
    command = [sys.executable, str(CLIENT), "-u", served.url, "-m", "nobody", "examples/iris/flowers.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "code: NOT_FOUND" in done.stderr) == (1, True)


def test_every_route_is_on_the_page() -> None:
    for route in PROTOCOL.routes:
        assert f"`{route.method} {route.pattern}`" in PAGE
