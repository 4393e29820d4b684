"""Whole jobs with real predictors: results, scores, cancellation, crashes, and a GPU that is free again."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import fake_docker as docker_stand_in
from tests.embedded import Platform
from tests.eventually import eventually
from tests.onnx_models import write_python
from tests.platform.microservices.batch.conftest import DECLARED, LOOPBACK, Here, picture
from tests.platform.microservices.conftest import QUICK, predictors

from pilotlight.errors import Conflict, NotFound, PlatformError, UsageError
from pilotlight.microservices.batch import jobs, workspace_storage
from pilotlight.microservices.batch.job_folder import Progress, job_folder
from pilotlight.microservices.registry.records import Workspace
from pilotlight.microservices.registry.registry_file import registry


def started(job_id: str) -> None:
    eventually(lambda: predictors(job_id), "the job has started its model")


def numbers(here: Here, *values: float) -> None:
    for value in values:
        body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}]}
        (here.root / "workspace" / "in" / f"{value:03.0f}.json").write_text(json.dumps(body))


def results(here: Here) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (here.root / "workspace/out/results.jsonl").read_text().splitlines()]


def test_pictures_are_classified_scored_and_the_model_is_ended(here: Here, colours: Path) -> None:
    inputs = here.root / "workspace" / "in"
    for name, colour in (("a.png", "red"), ("b.png", "green"), ("sub/c.png", "blue"), ("d.png", "red")):
        (inputs / name).parent.mkdir(exist_ok=True)
        (inputs / name).write_bytes(picture(colour))
    (inputs / "broken.png").write_bytes(picture("red")[:40])
    (inputs / "labels.csv").write_text("file,label\na.png,red\nb.png,red\nsub/c.png,blue\nd.png,red\nbroken.png,red\n")
    job = here.start(
        here.batch(colours, declared=DECLARED, labels="in/labels.csv", parameters={"batch_size": 3, "top_k": 1})
    )
    started(job)
    done = here.wait(job)
    assert (done.state, done.total, done.done, done.failed, done.skipped) == ("done", 5, 5, 1, 0), done.message
    assert done.percent == 100.0
    told = {each["file"]: each for each in results(here)}
    assert told["b.png"]["results"]["predictions"][0]["label"] == "green"
    assert "is damaged" in told["broken.png"]["error"]
    assert (here.root / "workspace/out/files/sub/c.png.json").exists()
    metrics = json.loads((here.root / "workspace/out/metrics.json").read_text())
    assert metrics == done.metrics
    assert metrics["accuracy"] == 0.6
    assert metrics["classes"]["red"]["recall"] == 0.5
    assert metrics["classes"]["blue"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "count": 1}
    assert not predictors(job)
    assert registry(here.environ).read().entries == {}
    eventually(lambda: not job_folder(here.home, job).spool.exists(), "what was kept for a resume is gone")


def test_a_job_that_is_cancelled_ends_its_model_and_goes_on_when_resumed(here: Here, gated: Path) -> None:
    numbers(here, 1, 2, 3, 4)
    job = here.start(here.batch(gated, "tensors"))
    started(job)
    eventually(lambda: (here.root / "asked").exists(), "the third file is under way")
    eventually(lambda: here.look(job).done == 2, "two are done")
    with pytest.raises(Conflict, match="is already running"):
        jobs.resume(here.home, job, here.environ)
    jobs.cancel(here.home, job, here.environ)
    (here.root / "open").touch()  # what is in flight may finish, as a predictor that is told to end lets it
    assert here.wait(job).state == "canceled"
    assert not predictors(job)
    assert not (here.root / "workspace/out/results.jsonl").exists()
    kept_before = {path: path.stat().st_mtime_ns for path in (here.root / "workspace/out/files").iterdir()}
    assert len(kept_before) >= 2

    jobs.resume(here.home, job, here.environ)
    done = here.wait(job)
    assert (done.state, done.done) == ("done", 4), done.message
    assert [each["results"]["outputs"][0]["data"] for each in results(here)] == [[1.0], [2.0], [3.0], [4.0]]
    assert all(path.stat().st_mtime_ns == before for path, before in kept_before.items())
    assert jobs.cancel(here.home, job, here.environ).state == "done"
    assert jobs.resume(here.home, job, here.environ).state == "done"


def test_a_job_whose_process_is_killed_is_told_so_tidied_and_taken_up(here: Here, gated: Path) -> None:
    numbers(here, 1, 3)
    job = here.start(here.batch(gated, "tensors"))
    started(job)
    eventually(lambda: (here.root / "asked").exists(), "the second file is under way")
    eventually(lambda: here.look(job).done == 1, "one is done")
    runner = job_folder(here.home, job).runner()
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    eventually(lambda: not runner.alive, "the job's process is gone")
    assert predictors(job)
    (here.root / "open").touch()
    seen = here.look(job)
    assert seen.state == "failed"
    assert "resume it to process the remaining files" in seen.message
    assert not predictors(job)

    jobs.resume(here.home, job, here.environ)
    done = here.wait(job)
    assert (done.state, done.done) == ("done", 2), done.message
    assert len(results(here)) == 2


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with a Docker that takes its time, in the folder that holds its home."""
    folder = tmp_path_factory.mktemp("docker")
    with Platform(folder / "home", {**QUICK, **docker_stand_in.installed(folder)}) as platform:
        yield platform


@pytest.fixture
def containers(docker: Platform) -> Callable[[], set[str]]:
    return lambda: docker_stand_in.containers(docker.home.root.parent)


@pytest.fixture
def pulling(here: Here, gated: Path, docker: Platform, containers: Callable[[], set[str]]) -> str:
    """A job whose model is being started by that Docker."""
    numbers(here, 1)
    here.home = docker.home
    here.environ |= {name: docker.env[name] for name in ("PATH", "DOCKER_STAND_IN", "PILOTLIGHT_HOME")}
    job = here.start(here.batch(gated, "tensors", platform="docker"))
    eventually(lambda: containers() == {job}, "Docker is at it")
    return job


def test_a_model_that_is_being_started_is_ended_where_the_jobs_process_is_killed(
    here: Here, pulling: str, containers: Callable[[], set[str]]
) -> None:
    runner = job_folder(here.home, pulling).runner()
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    eventually(lambda: not runner.alive, "the job's process is gone")
    assert here.look(pulling).state == "failed"
    assert containers() == set()
    assert job_folder(here.home, pulling).entry() is None


def test_a_cancellation_does_not_wait_for_a_start_and_leaves_nothing(
    here: Here, pulling: str, containers: Callable[[], set[str]]
) -> None:
    jobs.cancel(here.home, pulling, here.environ)
    assert here.wait(pulling).state == "canceled"
    assert containers() == set()
    assert registry(here.environ).read().entries == {}


def test_a_job_whose_model_could_not_be_started_says_why_and_can_be_resumed(
    here: Here, docker: Platform, pulling: str, containers: Callable[[], set[str]]
) -> None:
    broken = docker.home.root.parent / "broken"
    broken.touch()
    failed = here.wait(pulling)
    assert (failed.state, "no such device" in failed.message) == ("failed", True), failed.message
    assert containers() == set()
    broken.unlink()
    jobs.resume(here.home, pulling, here.environ)
    jobs.cancel(here.home, pulling, here.environ)
    assert here.wait(pulling).state == "canceled"
    assert containers() == set()


def test_of_several_resumes_at_once_one_goes_on_with_the_job(here: Here, gated: Path) -> None:
    numbers(here, 3)
    batch = here.batch(gated, "tensors")
    here.home.create()
    folder = job_folder(here.home, batch.id)
    folder.create(batch)
    folder.save_progress(Progress(batch.id, "failed"))

    def resumed(_: int) -> bool:
        try:
            jobs.resume(here.home, batch.id, here.environ)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(resumed, range(4))) == [False, False, False, True]
    (here.root / "open").touch()
    done = here.wait(batch.id)
    assert (done.state, done.done) == ("done", 1), done.message


def test_whoever_looks_while_a_job_is_resumed_does_not_take_it_for_killed(
    here: Here, gated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = here.batch(gated, "tensors")
    here.home.create()
    folder = job_folder(here.home, batch.id)
    folder.create(batch)
    folder.save_progress(Progress(batch.id, "failed"))
    folder.save_runner(2**22 + 1)  # no process has this number: the one before has ended
    seen: list[str] = []

    def started(*_: Any, **__: Any) -> None:
        seen.append(here.look(batch.id).state)
        raise OSError("no process can be started")

    monkeypatch.setattr("subprocess.Popen", started)
    for _ in range(2):  # what failed so can be resumed
        with pytest.raises(PlatformError, match="no process can be started"):
            jobs.resume(here.home, batch.id, here.environ)
        assert here.look(batch.id).state == "failed"
    assert seen == ["pending", "pending"]


def test_a_model_that_cannot_be_loaded_fails_the_job_with_what_to_do(here: Here, tmp_path: Path) -> None:
    numbers(here, 1)
    (tmp_path / "model.onnx").write_bytes(b"no model at all")
    job = here.start(here.batch(tmp_path / "model.onnx", "tensors"))
    failed = here.wait(job)
    assert failed.state == "failed"
    assert "export it again" in failed.message
    assert job_folder(here.home, job).entry() is None


# Ends its process at the first input of 3 or more; the second process that is started does not.
DIES = """
import os

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    if x[0] >= 3 and not os.path.exists("{folder}/died"):
        open("{folder}/died", "w").close()
        os._exit(7)
    return x
"""


@pytest.mark.long
def test_a_model_that_dies_fails_the_job_with_its_reason_and_the_rest_is_done_later(here: Here, tmp_path: Path) -> None:
    numbers(here, 1, 3)
    model = write_python(tmp_path / "models", "model", DIES.replace("{folder}", str(tmp_path)))
    job = here.start(here.batch(model, "tensors"))
    failed = here.wait(job)
    assert (failed.state, failed.done) == ("failed", 1)
    assert "it exited after its start" in failed.message
    jobs.resume(here.home, job, here.environ)
    assert here.wait(job).state == "done"
    assert len(results(here)) == 2


def test_inputs_and_results_may_be_in_a_bucket(here: Here, colours: Path, s3: tuple[Workspace, dict[str, str]]) -> None:
    workspace, variables = s3
    here.environ |= {
        **variables, "PILOTLIGHT_MEDIA_NETWORKS": "127.0.0.0/8", "PILOTLIGHT_MEDIA_ALLOW_HTTP": "true",
    }  # fmt: skip
    inputs = workspace_storage.open_folder("in", workspace, LOOPBACK, here.environ)
    inputs.write("a.png", picture("blue"))
    inputs.write("b.png", picture("green"))
    job = here.start(here.batch(colours, workspace=workspace, declared=DECLARED))
    done = here.wait(job)
    assert (done.state, done.done) == ("done", 2), done.message
    outputs = workspace_storage.open_folder("out", workspace, LOOPBACK, here.environ)
    assert outputs.names() == ["files/a.png.json", "files/b.png.json", "results.jsonl"]
    lines = [json.loads(line) for line in outputs.read("results.jsonl").splitlines()]
    assert [line["results"]["response"] for line in lines] == ["blue", "green"]
    told = b"".join(path.read_bytes() for path in (here.home.root / "batch").rglob("*") if path.is_file())
    assert variables["WORKSPACE_SECRET"].encode() not in told


def test_what_could_never_work_is_refused_before_a_process_is_started(here: Here, colours: Path) -> None:
    with pytest.raises(UsageError, match="topk is unknown"):
        here.start(here.batch(colours, parameters={"topk": 1}))
    with pytest.raises(UsageError, match="must be a folder or file of the workspace"):
        here.start(here.batch(colours, inputs="/etc"))
    with pytest.raises(UsageError, match="outputs is missing"):
        here.start(here.batch(colours, outputs=""))
    with pytest.raises(UsageError, match="cannot be scored by labels"):
        here.start(here.batch(colours, "segmentation", labels="labels.csv"))
    assert jobs.list_jobs(here.home, here.environ) == []


@pytest.mark.parametrize("job_id", ["none", "../x", ""])
def test_a_job_that_is_not_there_is_not_found(here: Here, job_id: str) -> None:
    with pytest.raises(NotFound):
        here.look(job_id)


# Tells which variables of workspaces its process can see.
SEES = """
import os

import numpy as np

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("BYTES", [1])}


def predict(x):
    return np.array([",".join(name for name in os.environ if name.startswith("WORKSPACE_"))], dtype=object)
"""


def test_a_model_sees_no_credentials_of_workspaces(here: Here, tmp_path: Path) -> None:
    numbers(here, 1)
    here.environ["WORKSPACE_OTHER__KEY"] = "of another team"  # as in that of the platform
    job = here.start(here.batch(write_python(tmp_path / "models", "model", SEES), "tensors"))
    assert here.wait(job).state == "done"
    assert results(here)[0]["results"]["outputs"][0]["data"] == [""]
