"""The real predictor behind the data plane: it answers as if asked directly, and its end loses no request."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platform.gateway.bed import Bed, play, read_answer, route
from tests.serving import ROOT, RunningServer, rendered

from pilotlight.gateway.routing_table import Backend, Replica, Route

FLAGS = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris")
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
PATH = "/iris/v2/models/iris/infer"


@pytest.fixture(params=["tcp", "unix"])
def predictors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[RunningServer]]:
    flags = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        unix = ("--host", f"unix:{folder}", "--http-port", "8080") if request.param == "unix" else ()
        flags.append((folder, *FLAGS, *unix))
    with RunningServer(*flags[0]) as one, RunningServer(*flags[1]) as two:
        yield [one, two]


def iris(*predictors: RunningServer) -> Route:
    replicas = tuple(Replica(str(each.process.pid), each.port, each.host) for each in predictors)
    return route("iris", Backend("iris-1", "iris", 100, replicas))


def test_an_answer_is_the_predictors_own(predictors: list[RunningServer]) -> None:
    direct = predictors[0].infer("iris", BODY)

    async def case(bed: Bed) -> None:
        bed.publish(iris(predictors[0]))
        reader, writer = await bed.connect()
        for chunked in (False, True, False):  # by the predictor's fast lane and by its full server
            writer.write(rendered("POST", PATH, BODY, None, "localhost", chunked=chunked))
            answered = await read_answer(reader)
            assert (answered.status, answered.json()["outputs"]) == (200, direct.json()["outputs"])
        assert (await bed.ask("HEAD", "/iris/v2/health/ready")).status in {200, 405}
        metadata = await bed.ask("GET", "/iris/v2/models/iris")
        assert metadata.json()["name"] == "iris"
        page = await bed.ask("GET", "/default/iris", headers={"Accept": "text/html"})
        assert 'curl &#x27;<span class="url">http://localhost/default/iris</span>/v2/' in page.body.decode()

    play(case)


@pytest.mark.parametrize(("clients", "each"), [(8, 60), pytest.param(32, 400, marks=pytest.mark.long)])
def test_replicas_that_leave_and_end_under_load_lose_no_request(
    predictors: list[RunningServer], clients: int, each: int
) -> None:
    """The order of a scale-down: a table without the replica, then SIGTERM at once."""
    old, new = predictors
    raw = rendered("POST", PATH, BODY, None, "localhost")
    statuses: list[int] = []

    async def ask_on(bed: Bed) -> None:
        reader, writer = await bed.connect()
        for _ in range(each):
            writer.write(raw)
            statuses.append((await read_answer(reader)).status)

    async def case(bed: Bed) -> None:
        bed.publish(iris(old, new))
        asking = [asyncio.ensure_future(ask_on(bed)) for _ in range(clients)]
        while len(statuses) < clients * each / 3:
            await asyncio.sleep(0.002)
        bed.publish(iris(new))
        old.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*asking)
        assert statuses == [200] * (clients * each), json.dumps([str(told) for told in bed.unreachable])
        assert bed.unreachable == []
        assert await asyncio.to_thread(old.process.wait, 30) == 0

    play(case, limit_s=500)
