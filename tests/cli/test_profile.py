"""`platformctl profile` against real predictors: torch's table where torch runs, else the phases of the requests."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Event, Thread

import pytest
from tests.cli.conftest import DOCUMENT, Call
from tests.onnx_models import write_identity, write_python
from tests.serving import RunningServer, json_tensor

from pilotlight.simulation.service_times import read_profile
from platformctl.profiles.profile_measurement import Batching, Level, phases_of, service_times

Serve = Callable[..., RunningServer]
TORCH_MODEL = """
import torch

INPUTS = {"x": ("FP32", [2])}
OUTPUTS = {"y": ("FP32", [2])}


def predict(x):
    return {"y": torch.sigmoid(torch.from_numpy(x.copy())).numpy()}
"""
ONE = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}


class Asking(Thread):
    """Asks a model again and again until the block ends."""

    def __init__(self, server: RunningServer, model: str) -> None:
        super().__init__()
        self._server, self._model, self._answered, self._enough = server, model, Event(), Event()

    def run(self) -> None:
        while not self._enough.is_set():
            assert self._server.infer(self._model, ONE).status == 200
            self._answered.set()

    def __enter__(self) -> None:
        self.start()
        assert self._answered.wait(60)

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


@pytest.fixture
def plain(serve: Serve, tmp_path: Path) -> RunningServer:
    write_identity(tmp_path / "models", "same", "FP32")
    return serve(tmp_path / "models")


def test_a_service_without_torch_tells_the_phases_of_its_requests(call: Call, plain: RunningServer) -> None:
    with Asking(plain, "same"):
        done = call("profile", plain.url, "--seconds", "2", "-o", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["kind"], told["models"][0]["model"]) == ("phases", "same")
    assert told["models"][0]["requests"] > 0
    assert told["models"][0]["compute_infer_us"] > 0


def test_silence_is_said(call: Call, plain: RunningServer) -> None:
    done = call("profile", plain.url, "--seconds", "0.01")
    assert done.code == 0, done.err
    assert done.out.split()[:2] == ["MODEL", "VERSION"]
    assert "no requests within 0.01 s" in done.err


def test_a_service_with_torch_gives_the_table_of_its_profiler(call: Call, serve: Serve, tmp_path: Path) -> None:
    write_python(tmp_path / "models", "soft", TORCH_MODEL)
    server = serve(tmp_path / "models")
    with Asking(server, "soft"):
        done = call("profile", server.url, "--seconds", "2")
    assert done.code == 0, done.err
    assert "aten::sigmoid" in done.out


def test_a_token_is_asked_for_and_taken(call: Call, serve: Serve, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "same", "FP32")
    (tmp_path / "token").write_text("let me in")
    server = serve(tmp_path / "models", "--admin-token-file", str(tmp_path / "token"))
    asked = ("profile", server.url, "--seconds", "0.01")
    done = call(*asked)
    assert (done.code, "--admin-token-file" in done.err) == (0, True)
    assert "--admin-token-file" not in call(*asked, "--token", "let me in").err
    done = call(*asked, "--token", "open sesame")
    assert (done.code, "--admin-token-file" in done.err) == (1, True)


def test_an_odd_length_of_time_is_refused(call: Call) -> None:
    done = call("profile", "http://127.0.0.1:1", "--seconds", "0")
    assert done.code == 2
    assert "--seconds is 0" in done.err


NAP = """
import time

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


class Model:
    def predict(self, x):
        time.sleep(0.05)
        return {"y": x}
"""


@pytest.fixture
def nap(tmp_path: Path) -> Path:
    """The manifest of a service whose model sleeps 50 ms, one request after the other."""
    (tmp_path / "model.py").write_text(NAP)
    manifest = tmp_path / "nap.yaml"
    manifest.write_text(DOCUMENT.replace("iris", "nap").replace("onnx}", "python}").replace("model.onnx", "model.py"))
    return manifest


def test_a_copy_is_measured_and_deleted(call: Call, at_home: None, nap: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    measure = ("profile", "--write", str(profile), "--seconds", "0.5", "--concurrency", "1,4", "--cold-starts", "0")
    done = call(*measure, "-f", str(nap))
    assert done.code == 0, done.err
    assert "4 concurrent requests" in done.err
    times = read_profile(profile).service_times
    assert times.parallel == 1  # more clients only wait longer
    assert 0.05 <= median(times.samples) < 0.1
    (started,) = read_profile(profile).cold_starts["process"].totals
    assert 0.05 < started < 60
    assert json.loads(call("list", "-o", "json").out)["services"] == []


@pytest.mark.long
def test_cold_starts_of_a_deployed_service_are_measured(call: Call, at_home: None, nap: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    assert call("deploy", "-f", str(nap)).code == 0
    done = call("profile", "nap", "--write", str(profile), "--seconds", "0.2", "--concurrency", "1", "-o", "json")
    assert done.code == 0, done.err
    phases = json.loads(done.out)["coldStarts"]["process"]
    assert len(phases["import"]) == len(phases["wake"]) == 3
    assert 0.05 < phases["cpuSeconds"] < 60
    done = call("profile", "nap", "--from-metrics", "--write", str(profile))
    assert done.code != 0  # the copy had all requests
    assert "send it some" in done.err
    assert call("infer", "nap", "--data", "[1]").code == 0
    done = call("profile", "nap", "--from-metrics", "--write", str(profile))
    assert done.code == 0, done.err
    assert read_profile(profile).service_times.samples[0] >= 0.025
    call("delete", "nap")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs a NAME, or the file of an InferenceService"),
        (("iris", "--concurrency", "0,1"), "--concurrency is 0,1, must be numbers from 1 to 256"),
        (("iris", "--data", "{"), "--data is not JSON"),
        (("iris", "--target", "kubernetes"), "a profile is measured on one machine, and the target is kubernetes"),
    ],
)
def test_a_measurement_that_cannot_be_made_says_why(
    call: Call, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = call("profile", *words, "--write", str(tmp_path / "profile.json"))
    assert (done.code, message in done.err) == (2, True), done.err


def level(latency_ms: float, rate: float) -> Level:
    return Level((latency_ms / 1000,) * 3, rate)


@pytest.mark.parametrize(
    ("levels", "parallel", "shared"),
    [
        ({1: level(50, 20), 4: level(200, 20), 8: level(400, 20)}, 1, False),  # one instance
        ({1: level(50, 20), 2: level(50, 40), 8: level(200, 40)}, 2, False),  # two
        ({1: level(50, 20), 2: level(60, 33), 8: level(110, 72)}, 1, True),  # they slow each other down
        ({1: level(50, 20), 8: level(50, 160)}, 1, True),  # not saturated
    ],
)
def test_the_model_of_service_times_follows_from_the_throughput(
    levels: dict[int, Level], parallel: int, shared: bool
) -> None:
    times = service_times(levels, {}, Batching())
    assert (times.parallel, bool(times.by_concurrency)) == (parallel, shared)


def test_a_batching_model_has_a_time_for_each_batch() -> None:
    times = service_times({1: level(5, 200)}, {1: level(5, 200), 8: level(9, 110)}, Batching(8, 0.001, 2))
    assert (times.max_batch, times.batch_delay, times.parallel, list(times.by_batch)) == (8, 0.001, 2, [1, 8])


def test_phases_add_up_to_what_the_first_request_waited() -> None:
    overlapping = {"boot": 0.1, "import": 0.5, "fetch": 0.4, "total": 0.8}
    assert sum(phases_of(overlapping, 0.9).values()) == pytest.approx(0.9)
    assert phases_of({"boot": 0.1, "load": 0.2, "total": 0.5}, 0.6)["other"] == pytest.approx(0.2)
