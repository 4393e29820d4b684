"""A C++ client, built against grpc++ and libcurl, gets what it sent: unary, async, streams, compression, keepalive.

Triton's own C++ client is published as source alone, so client.cc sets its channel arguments and makes its calls.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.onnx_models import write_identity, write_python
from tests.serving import ROOT, RunningServer

pytestmark = pytest.mark.long
CLIENT = Path(__file__).parent / "cpp_client" / "client.cc"
DELAYED = """
import time

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    time.sleep(float(x[0]))
    return {"y": x}
"""
EXPECTED = {
    **{f"unary/{name}/{size}": "same" for name in ("none", "deflate", "gzip") for size in (1, 200000)},
    "async": "8 same",
    **{f"stream/{name}": "20 same, status 0" for name in ("none", "deflate", "gzip")},
    "deadline": "status 4",
    "cancel": "status 1",
    "after": "same",
    **{f"http/{name}/{size}": "same, status 200" for name in ("none", "gzip", "deflate") for size in (1, 500000)},
}
KEPT, ENDED = "same same status 0", "same ended status 14"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; on Debian it needs g++, libgrpc++-dev, protobuf-compiler-grpc and libcurl4-openssl-dev."""
    folder = tmp_path_factory.mktemp("client")
    plugin = shutil.which("grpc_cpp_plugin")
    if plugin is None or not shutil.which("g++") or not shutil.which("protoc"):
        pytest.skip("g++, protoc and grpc_cpp_plugin are not installed")
    protos = [path.relative_to(ROOT / "protos").as_posix() for path in (ROOT / "protos/inference").glob("*.proto")]
    generated = [f"--cpp_out={folder}", f"--grpc_out={folder}", f"--plugin=protoc-gen-grpc={plugin}"]
    subprocess.run(["protoc", f"-I{ROOT / 'protos'}", *generated, *protos], check=True)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "grpc++", "protobuf", "libcurl", "zlib"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    sources = [str(CLIENT), *(str(file) for file in folder.rglob("*.cc"))]
    libraries = ["-labsl_synchronization", "-lpthread"]
    command = ["g++", "-std=c++17", "-Wall", f"-I{folder}", "-o", str(folder / "client"), *sources, *flags, *libraries]
    subprocess.run(command, check=True)
    return folder / "client"


@pytest.mark.parametrize(
    ("flags", "keepalive"),
    [
        (["--grpc-infer-response-compression-level=high", "--grpc-http2-max-ping-strikes=0"], KEPT),
        (["--grpc-keepalive-time=500", "--grpc-http2-min-recv-ping-interval-without-data=500"], KEPT),
        (["--grpc-http2-max-ping-strikes=1"], ENDED),
    ],
    ids=["compressed", "pinging", "strikes"],
)
def test_a_c_client_gets_what_it_sent(
    client: Path, serve: Callable[..., RunningServer], tmp_path: Path, flags: list[str], keepalive: str
) -> None:
    write_identity(tmp_path / "models", "echo", "FP32", ["n"])
    write_python(tmp_path / "models", "delayed", DELAYED)
    server = serve(tmp_path / "models", "--compat=triton", "--grpc-port=0", *flags)
    address = f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}"
    done = subprocess.run(
        [str(client), address, f"http://127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert outcomes == {**EXPECTED, "keepalive": keepalive}
