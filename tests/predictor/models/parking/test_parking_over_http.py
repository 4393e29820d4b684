"""Models of python that park: told to, by themselves, woken by requests, and what happens when that fails.

A model here has `weights` only while it is awake, and answers with them: one that was not woken could not answer.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_python
from tests.serving import Answer, RunningServer

PARKS = """
from pathlib import Path
from time import sleep

INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}
HERE = Path(__file__).parents[1]


class Model:
    park_bytes = 600

    def initialize(self, args):
        self.weights = 2.0

    def execute(self, inputs):
        return {"y": inputs["x"] * self.weights}

    def park(self):
        if (HERE / "stay").exists():
            raise RuntimeError("secret of park")
        del self.weights

    async def wake(self):
        (HERE / "waking").touch()
        while (HERE / "slow").exists():
            sleep(0.01)
        if (HERE / "full").exists():
            raise MemoryError("secret of wake")
        self.weights = 2.0

    def finalize(self):
        (HERE / "finalized").touch()
"""
HELD = """
import gc
from pathlib import Path

INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}
HERE = Path(__file__).parents[1]
gc.disable()


class Model:
    def execute(self, inputs):
        return {"y": inputs["x"] * 2}

    def park(self):
        pass

    wake = park

    def __del__(self, path=HERE / "let_go", touch=Path.touch):
        touch(path)
"""
TRITON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = 3.0

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy() * self.weights)]
            )
            for request in requests
        ]

    def park(self):
        del self.weights

    def wake(self):
        self.weights = 3.0
"""
TENSORS = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STAYS = """
INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}


def predict(x):
    return x
"""
TWICE = "instance_group [ { count: 2 kind: KIND_CPU } ]"
TOKEN = "let-me-in"
ASKED = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 5]}]}

Serve = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parking")
    for name in ("one", "two", "gone"):
        write_python(root, name, PARKS)
    write_python(root, "pair", PARKS.replace("600", "100"), TENSORS + TWICE)
    write_python(root, "triton", TRITON, TENSORS)
    write_python(root, "stays", STAYS)
    return root


@pytest.fixture(scope="module")
def server(serve_module: Serve, repository: Path) -> RunningServer:
    """Has room for one of the larger models and some small ones."""
    flags = ("--model-control-mode=explicit", "--load-model=*", "--park-memory=1000", "--max-queue-size=3")
    return serve_module(repository, *flags)


@pytest.fixture(autouse=True)
def awake(request: pytest.FixtureRequest) -> None:
    """Each test begins with a server all of whose models are awake."""
    if "server" in request.fixturenames:
        server: RunningServer = request.getfixturevalue("server")
        for name in ("one", "two", "pair", "triton"):
            assert server.post(f"/v2/repository/models/{name}/wake").status == 200


def states(server: RunningServer) -> dict[str, str]:
    return {row["name"]: row["state"] for row in server.post("/v2/repository/index").json()}


def park(server: RunningServer, name: str) -> Answer:
    return server.post(f"/v2/repository/models/{name}/park")


def answered(server: RunningServer, name: str) -> Any:
    return server.infer(name, ASKED).json()["outputs"][0]["data"]


def metric(server: RunningServer, series: str) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == series), 0.0)


def test_a_parked_model_is_ready_says_so_and_is_woken_by_a_request(server: RunningServer) -> None:
    wakes = 'pilotlight_model_wake_seconds_count{model="one",version="1"}'
    before = metric(server, wakes)
    parked = park(server, "one")
    assert (parked.status, parked.json()) == (200, [{"name": "one", "version": "1", "state": "PARKED", "reason": ""}])
    assert states(server)["one"] == "PARKED"
    assert [row["state"] for row in server.get("/status").json()["models"] if row["name"] == "one"] == ["PARKED"]
    assert "one" in {row["name"] for row in server.post("/v2/repository/index", {"ready": True}).json()}
    for path in ("/v2/models/one/ready", "/v2/health/ready"):
        assert server.get(path).status == 200
    assert b"ready_state: MODEL_READY" in server.get("/api/status/one").body
    assert metric(server, "pilotlight_parked_models") == 1
    assert metric(server, "pilotlight_parked_bytes") == 600
    assert metric(server, 'pilotlight_model_state{model="one",version="1",state="PARKED"}') == 1
    assert answered(server, "one") == [2, 10]
    assert states(server)["one"] == "READY"
    assert metric(server, wakes) == before + 1
    assert server.get("/status").json()["wake_seconds"] > 0
    assert metric(server, "pilotlight_parked_models") == 0


@pytest.mark.parametrize(("name", "answer"), [("pair", [2, 10]), ("triton", [3, 15])])
def test_all_instances_of_a_model_park_whatever_form_it_has(server: RunningServer, name: str, answer: object) -> None:
    assert park(server, name).status == 200
    assert park(server, name).status == 200  # twice is once
    for _ in range(3):
        assert answered(server, name) == answer


def test_a_model_is_woken_by_an_admin_before_anybody_asks(server: RunningServer) -> None:
    park(server, "one")
    assert server.post("/v2/repository/models/one/wake").json()[0]["state"] == "READY"
    assert answered(server, "one") == [2, 10]


def test_requests_that_come_during_a_wake_wait_in_the_line_and_no_longer_one(
    server: RunningServer, repository: Path
) -> None:
    slow, waking = repository / "one/slow", repository / "one/waking"
    park(server, "one")
    waking.unlink(missing_ok=True)
    slow.touch()
    try:
        with ThreadPoolExecutor(3) as clients:
            waiting = [clients.submit(answered, server, "one") for _ in range(3)]
            depth = 'pilotlight_queue_depth{model="one",version="1"}'
            server.wait_until(lambda: waking.exists() and metric(server, depth) == 3, "waking with three in line")
            beyond = server.infer("one", ASKED)
            assert (beyond.status, beyond.error.partition(":")[0]) == (503, "Exceeds maximum queue size")
            assert park(server, "one").status == 503
            slow.unlink()
            assert [each.result() for each in waiting] == [[2, 10]] * 3
    finally:
        slow.unlink(missing_ok=True)


def test_a_wake_that_fails_is_a_503_with_its_reason_and_the_model_stays_parked(
    server: RunningServer, repository: Path
) -> None:
    full = repository / "one/full"
    park(server, "one")
    full.touch()
    try:
        refused = server.infer("one", ASKED)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error.startswith("'one' is parked and could not be woken: model 'one' raised MemoryError")
        assert states(server)["one"] == "PARKED"
        assert server.post("/v2/repository/models/one/wake").status == 503
    finally:
        full.unlink()
    assert answered(server, "one") == [2, 10]
    assert "secret of wake" not in refused.error
    assert any("secret of wake" in json.dumps(line) for line in server.log())


def test_a_model_that_fails_to_park_goes_on_serving(server: RunningServer, repository: Path) -> None:
    stay = repository / "one/stay"
    stay.touch()
    try:
        refused = park(server, "one")
        assert (refused.status, "secret" in refused.error) == (500, False)
    finally:
        stay.unlink()
    assert states(server)["one"] == "READY"
    assert answered(server, "one") == [2, 10]


def test_what_the_budget_has_no_room_for_is_not_parked(server: RunningServer) -> None:
    assert park(server, "one").status == 200
    refused = park(server, "two")
    assert refused.status == 400
    assert refused.error == (
        "'two' cannot be parked: that takes 600 bytes of host memory, and --park-memory=1000 leaves 400; raise it"
    )
    assert states(server)["two"] == "READY"
    assert park(server, "pair").status == 200  # 200 bytes fit
    assert server.post("/v2/repository/models/one/wake").status == 200
    assert park(server, "two").status == 200


def test_a_model_that_cannot_park_says_why_when_asked_and_once_in_the_log(server: RunningServer) -> None:
    refused = park(server, "stays")
    assert (refused.status, refused.error[:42]) == (400, "'stays' cannot be parked: the python backe")
    told = [line for line in server.log() if line.get("event") == "model.never_parked"]
    assert [line["model"] for line in told] == ["stays"]


def test_a_parked_model_can_be_unloaded(server: RunningServer, repository: Path) -> None:
    park(server, "gone")
    assert server.post("/v2/repository/models/gone/unload").status == 200
    server.wait_until(lambda: (repository / "gone/finalized").exists(), "done with the model")
    assert server.infer("gone", ASKED).status == 404
    server.wait_until(lambda: metric(server, "pilotlight_parked_bytes") == 0, "without its bytes")


def test_an_unknown_model_is_not_parked(server: RunningServer) -> None:
    assert park(server, "nobody").status == 404


def test_a_model_that_nobody_asks_for_parks_by_itself_again_and_again(serve: Serve, tmp_path: Path) -> None:
    write_python(tmp_path, "idle", PARKS)
    server = serve(tmp_path, "--park-memory=1KiB", "--park-after=0.1")
    for _ in range(2):
        server.wait_until(lambda: states(server)["idle"] == "PARKED", "idle for long enough")
        assert answered(server, "idle") == [2, 10]


def test_parking_is_for_admins_and_for_servers_that_were_given_memory(serve: Serve, tmp_path: Path) -> None:
    write_python(tmp_path / "models", "one", PARKS)
    (tmp_path / "token").write_text(TOKEN)
    server = serve(tmp_path / "models", f"--admin-token-file={tmp_path / 'token'}")
    assert park(server, "one").status in {401, 403}
    assert server.post("/v2/repository/models/one/wake").status in {401, 403}
    refused = server.post("/v2/repository/models/one/park", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (refused.status, refused.error) == (
        400,
        "'one' cannot be parked: parking is off; start the server with --park-memory=25%",
    )


def test_an_unloaded_model_is_let_go_of_although_nobody_collects(serve: Serve, tmp_path: Path) -> None:
    """As what a server loads at its start, which its collector does not walk."""
    for name in ("awake", "parked"):
        write_python(tmp_path, name, HELD)
    server = serve(tmp_path, "--model-control-mode=explicit", "--load-model=*", "--park-memory=1000")
    for name in ("awake", "parked"):
        assert answered(server, name) == [2, 10]
    assert park(server, "parked").status == 200
    for name in ("awake", "parked"):
        assert server.post(f"/v2/repository/models/{name}/unload").status == 200
        server.wait_until((tmp_path / name / "let_go").exists, "without the model")
