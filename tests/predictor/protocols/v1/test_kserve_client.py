"""KServe's own V1 client as the judge, in a process of its own; its models get the JSON as under its own server."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from tests.onnx_models import write_add_sub, write_python
from tests.serving import RunningServer

pytestmark = pytest.mark.skipif(find_spec("kserve") is None, reason="the kserve extra is not installed")

JUDGE = """
    import asyncio, sys
    import httpx
    from kserve import InferenceRESTClient, RESTConfig

    async def main(url):
        client = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
        assert await client.is_server_live(url)
        assert await client.is_model_ready(url, "add_sub")
        rows = [{"a": [1, 2, 3, 4], "b": [4, 3, 2, 1]}]
        answer = await client.infer(url, {"instances": rows}, model_name="add_sub")
        assert answer == {"predictions": [{"sum": [5.0] * 4, "difference": [-3.0, -1.0, 1.0, 3.0]}]}, answer
        for ask in (client.is_model_ready(url, "nobody"),
                    client.infer(url, {"instances": [1]}, model_name="add_sub"),
                    client.explain(url, "add_sub", {"instances": rows})):
            try:
                await ask
            except httpx.HTTPStatusError as error:
                told = str(error)
                known = "does not exist", "is not found", "must be an object", "has no explainer"
                assert any(each in told for each in known), told
            else:
                raise AssertionError("refused in vain")
        answer = await client.infer(url, {"instances": [[1, 2], [3, 4]], "by": 2}, model_name="wrapped")
        assert answer == {"predictions": [6, 14], "note": "as it came"}, answer
        answer = await client.explain(url, "wrapped", {"instances": [[1, 2]]})
        assert answer == {"explanations": {"weights": [1, 1]}}, answer
        await client.close()

    asyncio.run(main(sys.argv[1]))
"""
WRAPPED = """
from kserve import Model
from kserve.errors import InvalidInput


class Sums(Model):
    def load(self):
        self.ready = True
        return True

    def predict(self, payload, headers=None):
        if "by" not in payload:
            raise InvalidInput("by is missing")
        return {"predictions": [sum(row) * payload["by"] for row in payload["instances"]], "note": "as it came"}

    async def explain(self, payload, headers=None):
        return {"explanations": {"weights": [1 for _ in payload["instances"][0]]}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    repository = tmp_path_factory.mktemp("kserve")
    write_add_sub(repository, "add_sub")
    write_python(repository, "wrapped", WRAPPED, "max_batch_size: 0")
    server = serve_module(repository, ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", 300)  # it imports kserve
    return server


def test_the_client_is_content(server: RunningServer, tmp_path: Path) -> None:
    program = tmp_path / "judge.py"
    program.write_text(dedent(JUDGE))
    environment = {"NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(program), server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr


def test_what_the_model_calls_invalid_is_the_clients_mistake(server: RunningServer) -> None:
    answer = server.post("/v1/models/wrapped:predict", {"instances": [[1]]})
    assert (answer.status, answer.error) == (400, "by is missing")
