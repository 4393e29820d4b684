"""The dialect in docs/architecture.md works: it is run against a real model, in-process and as a package's own."""

import asyncio
import re
import sys
from pathlib import Path
from time import perf_counter

import pytest
from tests.architecture.source_tree import ROOT
from tests.doc_pages import page_section

from pilotlight_predictor import protocols
from pilotlight_predictor.bootstrap.application import Application
from pilotlight_predictor.config import parse
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import Dispatcher
from pilotlight_predictor.frontends.http.server import HttpServer
from pilotlight_predictor.server.server_state import Lifecycle

GUIDE = page_section("docs/architecture.md", "Adding a protocol")
SOURCE, ENTRY = (re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)[0] for kind in ("python", "toml"))
MODEL = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris")
FAILING = """
INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1])}

def predict(x):
    raise KeyError("secret")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's module and entry point as an installed distribution."""
    name, module = re.findall(r'^(\w+) = "(.*)"$', ENTRY, re.MULTILINE)[0]
    source = tmp_path / (module.replace(".", "/") + ".py")
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    metadata = tmp_path / "my_package-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[pilotlight.dialects]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(tmp_path)


async def ask(dispatcher: Dispatcher, body: bytes, model: str = "iris") -> HttpResponse:
    answered: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
    call = HttpRequest("POST", f"/csv/{model}", "", {}, body, "127.0.0.1", answered.set_result, perf_counter())
    dispatcher.serve(call, dispatcher.admit(call))
    return await asyncio.wait_for(answered, 30)


async def serve(*bodies: bytes, model: str = "iris", flags: tuple[str, ...] = MODEL) -> list[HttpResponse]:
    """Everything but a socket: the parts are put together and the model loaded as at any start."""
    assembly = Application(parse([*flags, "--grpc-port", "-1"], {}), Lifecycle(0.0, 0.0))
    await assembly.open(HttpServer(lambda _: HttpResponse(503)), None)
    work = asyncio.create_task(assembly.work(asyncio.Event()))
    try:
        async with asyncio.timeout(60):
            while not assembly.server.readiness().ready:
                await asyncio.sleep(0.01)
        return [await ask(assembly._dispatcher, body, model) for body in bodies]
    finally:
        work.cancel()
        await asyncio.wait([work])
        await assembly.close()


@pytest.mark.usefixtures("package")
def test_it_answers_as_the_page_says() -> None:
    (reply,) = asyncio.run(serve(b"5.1,3.5,1.4,0.2\n6.7,3.0,5.2,2.3\n"))
    assert reply.status == 200
    assert reply.content_type == "text/csv"
    assert isinstance(reply.body, list)
    assert len(b"".join(reply.body).decode().splitlines()) == 2


@pytest.mark.usefixtures("package")
def test_a_plug_in_that_cannot_be_loaded_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = re.findall(r'^\w+ = "(.*)"$', ENTRY, re.MULTILINE)[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / (module.replace(".", "/") + ".py")).write_text("import pilotlight_predictor.dialects")
    with pytest.raises(PredictorError, match=r"plug-in 'csv' of my-package cannot be loaded: .*; update it"):
        asyncio.run(serve(b"1,2,3,4"))


@pytest.mark.usefixtures("package")
def test_bad_rows_get_a_sentence_in_its_own_error_body() -> None:
    for reply in asyncio.run(serve(b"", b"a,b", b"1,2\n3", b"1,2,3", b"\xff", b"1e999,0,0,0" * 2)):
        assert reply.status == 400, reply.body
        assert isinstance(reply.body, list)
        assert bytes(reply.body[0]).startswith(b"error: ")


@pytest.mark.usefixtures("package")
def test_an_unknown_model_is_not_found() -> None:
    (reply,) = asyncio.run(serve(b"1,2,3,4", model="nobody"))
    assert reply.status == 404


@pytest.mark.usefixtures("package")
def test_a_model_that_fails_is_told_in_its_own_error_body_without_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(FAILING)
    flags = ("--model-path", str(model), "--model-name", "broken", "--warmup", "none")
    (reply,) = asyncio.run(serve(b"1", model="broken", flags=flags))
    assert reply.status == 500
    assert isinstance(reply.body, list)
    assert bytes(reply.body[0]).startswith(b"error: ")
    assert b"secret" not in bytes(reply.body[0])


def test_every_dialect_of_the_table_has_its_own_routes() -> None:
    patterns = [(route.method, route.pattern) for dialect in protocols.serving_protocols() for route in dialect.routes]
    assert len(patterns) == len(set(patterns))
