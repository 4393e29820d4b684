"""The real predictor behind the data plane: it answers as if asked directly, and its end loses no request."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platform.gateway.bed import Bed, backend, play, read_answer, route
from tests.serving import ROOT, RunningServer, rendered

FLAGS = ("--model-path", str(ROOT / "examples/iris/model.onnx"), "--model-name", "iris")
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
PATH = "/iris/v2/models/iris/infer"


@pytest.fixture
def predictors(tmp_path: Path) -> Iterator[list[RunningServer]]:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with RunningServer(folders[0], *FLAGS) as one, RunningServer(folders[1], *FLAGS) as two:
        yield [one, two]


def test_an_answer_is_the_predictors_own(predictors: list[RunningServer]) -> None:
    direct = predictors[0].infer("iris", BODY)

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", predictors[0].port)))
        reader, writer = await bed.connect()
        for chunked in (False, True, False):  # by the predictor's fast lane and by its full server
            writer.write(rendered("POST", PATH, BODY, None, "gateway", chunked=chunked))
            answered = await read_answer(reader)
            assert (answered.status, answered.json()["outputs"]) == (200, direct.json()["outputs"])
        assert (await bed.ask("HEAD", "/iris/v2/health/ready")).status in {200, 405}
        metadata = await bed.ask("GET", "/iris/v2/models/iris")
        assert metadata.json()["name"] == "iris"

    play(case)


@pytest.mark.parametrize(("clients", "each"), [(8, 60), pytest.param(32, 400, marks=pytest.mark.long)])
def test_replicas_that_leave_and_end_under_load_lose_no_request(
    predictors: list[RunningServer], clients: int, each: int
) -> None:
    """The order of a scale-down: a table without the replica, then SIGTERM at once."""
    old, new = predictors
    raw = rendered("POST", PATH, BODY, None, "gateway")
    statuses: list[int] = []

    async def ask_on(bed: Bed) -> None:
        reader, writer = await bed.connect()
        for _ in range(each):
            writer.write(raw)
            statuses.append((await read_answer(reader)).status)

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1", old.port, new.port)))
        asking = [asyncio.ensure_future(ask_on(bed)) for _ in range(clients)]
        while len(statuses) < clients * each / 3:
            await asyncio.sleep(0.002)
        bed.publish(route("iris", backend("iris-1", new.port)))
        old.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*asking)
        assert statuses == [200] * (clients * each), json.dumps([str(told) for told in bed.unreachable])
        assert bed.unreachable == []
        assert await asyncio.to_thread(old.process.wait, 30) == 0

    play(case, limit_s=500)
