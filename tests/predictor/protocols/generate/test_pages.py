"""The model and the clients of the two pages run as they stand there."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doc_pages import page_section
from tests.serving import RunningServer


def blocks(section: tuple[str, str], language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page_section(*section), re.MULTILINE | re.DOTALL)


DECOUPLED = ("docs/reference/backends.md", "Decoupled models and Triton's Python backend")
GENERATE = ("docs/reference/http-api.md", "generate and generate_stream")
MODEL, BY_GRPC, *_ = blocks(DECOUPLED, "python")
(BY_HTTP,) = blocks(GENERATE, "python")
EVENTS = [f"{{'model_name': 'counts', 'model_version': '1', 'i': {i}}}" for i in range(3)]


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder = tmp_path_factory.mktemp("models") / "counts"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(blocks(DECOUPLED, "text")[0])
    (folder / "1/model.py").write_text(MODEL)
    return serve_module(folder.parent, "--grpc-port", "0")


@pytest.mark.parametrize(
    ("client", "printed"), [(BY_GRPC, ["0", "1", "2"]), (BY_HTTP, EVENTS)], ids=["ModelStreamInfer", "generate_stream"]
)
def test_a_client_of_the_page_is_answered(
    server: RunningServer, client: str, printed: list[str], tmp_path: Path
) -> None:
    script, grpc_port = tmp_path / "client.py", server.wait_for_event("grpc.listening")["grpc_port"]
    script.write_text(client.replace(":8080", f":{server.port}").replace(":8081", f":{grpc_port}"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == printed, done.stderr[-3000:]
