"""A model is parked when it is in every worker: a call that a worker did not live to answer has not parked it."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.conftest import Serve
from tests.predictor.workers.several import seconds, wait_for_all, write_pid
from tests.serving import RunningServer

PARKS = """
import os
import time
from pathlib import Path

import numpy as np

INPUTS = {"seconds": ("FP32", [1])}
OUTPUTS = {"pid": ("INT64", [1])}
HERE = Path(__file__).parents[1]


class Model:
    def execute(self, inputs):
        return {"pid": np.array([os.getpid()])}

    def park(self):
        (HERE / f"parking-{os.getpid()}").touch()
        while (HERE / "slow").exists():
            time.sleep(0.01)

    def wake(self):
        pass
"""


PARK = "/v2/repository/models/m/park"


def post(worker: HTTPConnection, path: str, document: Any = None) -> tuple[int, Any]:
    """By a connection that stays with one worker."""
    worker.request("POST", path, json.dumps(document or {}))
    answer = worker.getresponse()
    return answer.status, json.loads(answer.read())


def state(server: RunningServer) -> str:
    return next(row["state"] for row in server.get("/status").json()["models"] if row["name"] == "m")


def test_a_parking_that_a_worker_did_not_live_to_end_is_a_failure(serve: Serve, tmp_path: Path) -> None:
    write_pid(tmp_path, "m", PARKS)
    server = serve(tmp_path, "--workers", "2", "--park-memory", "1000")
    pids = wait_for_all(server)
    with closing(HTTPConnection(server.address, timeout=60)) as worker:
        assert post(worker, PARK)[0] == 200
        assert state(server) == "PARKED"
        asked = post(worker, "/v2/models/m/infer", seconds(0))[1]["outputs"][0]["data"][0]
        assert state(server) == "READY"  # one of two has its weights
        assert post(worker, "/v2/repository/models/m/wake")[0] == 200
        for file in (tmp_path / "m").glob("parking-*"):
            file.unlink()
        (tmp_path / "m/slow").touch()
        (other,) = set(pids) - {asked}
        with ThreadPoolExecutor(1) as admin:
            parking = admin.submit(post, worker, PARK)
            server.wait_until(lambda: len(list((tmp_path / "m").glob("parking-*"))) == 2, "parking in both")
            os.kill(other, signal.SIGKILL)
            (tmp_path / "m/slow").unlink()
            status, document = parking.result()
    assert (status, document["error"]) == (503, "a worker died over the call")
