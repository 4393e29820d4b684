"""What a client is told at every point of a microservice's life, by predictors that wait, fail and die for real."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.embedded import IRIS
from tests.onnx_models import write_model
from tests.platform.microservices.api.conftest import FLOWER, ORG, Api
from tests.platform.microservices.api.test_batches import NODES
from tests.platform.microservices.batch.conftest import COLOURS, DECLARED, picture
from tests.platform.microservices.conftest import predictors

WAITING = """
import pathlib, time
INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1, 1])}
while not pathlib.Path(GO).exists():
    time.sleep(0.05)

def predict(x):
    if float(x.sum()) < 0:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return {"y": x}
"""
OUT_OF_MEMORY = """
INPUTS = {"x": ("FP32", [-1, 1])}
OUTPUTS = {"y": ("FP32", [-1, 1])}
raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.89 GiB")
"""
NUMBER = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
NEGATIVE = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [-1.0]}]}


def started(api: Api, artifact: Path) -> tuple[str, str]:
    """Where it is asked, and its id."""
    experiment, parent = api.train(artifact)
    job = api.start(experiment, parent)
    return api.microservice(experiment, job), job


def wait_status(api: Api, at: str, status: str) -> dict[str, object]:
    told: dict[str, object] = {}

    def reached() -> bool:
        told.update(api.ok("GET", f"{at}/status"))
        return told["status"] == status

    api.wait(reached, f"the status {status}")
    return told


def test_a_model_that_loads_is_202_until_it_answers_and_one_failing_request_is_503(api: Api, tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "model.py").write_text(f"GO = {str(go)!r}\n{WAITING}")
    at, job = started(api, tmp_path / "model.py")
    told = wait_status(api, at, "loading")
    assert (told["model_loading"], told["server_initializing"], told["model_loaded"]) == (True, False, False)
    reply = api.ask("POST", f"{at}/inference", NUMBER)
    assert (reply.status, reply.headers["retry-after"]) == (202, "10")
    assert reply.json() == {
        "job_id": job, "status": "loading", "message": "Model is currently loading, please wait and try again",
    }  # fmt: skip
    go.touch()
    api.wait_loaded(at)
    assert api.ok("POST", f"{at}/inference", NUMBER)["results"]["outputs"][0]["data"] == [1.0]

    failed = api.ask("POST", f"{at}/inference", NEGATIVE)
    assert failed.status == 503
    assert (failed.json()["status"], failed.json()["job_id"]) == ("error", job)
    assert failed.json()["error"].startswith("Inference failed: ")
    assert api.ok("POST", f"{at}/inference", NUMBER)  # it goes on all the same
    api.ok("POST", f"{at}/stop")


def test_wrong_parameters_are_400_and_name_them(api: Api, iris: tuple[str, str]) -> None:
    at, _ = started(api, IRIS)
    reply = api.ask("POST", f"{at}/inference", {"temperature": 1, "inputs": []})  # also while it loads
    assert (reply.status, reply.json()["status"]) == (400, "error")
    assert "temperature is unknown" in reply.json()["error"]
    assert "must be one of inputs, outputs" in reply.json()["error"]
    assert api.ask("POST", f"{at}/inference", b"[]").status == 400
    assert api.ask("POST", f"{at}/inference", b"{").status == 400
    empty = api.ask("POST", f"{at}/inference", b"")
    assert (empty.status, empty.json()["error"]) == (400, "the body is empty, must be a JSON object")
    api.wait_loaded(at)
    assert api.ask("POST", f"{at}/inference", {}).status == 400
    misfit = {"inputs": [{"name": "nose", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    reply = api.ask("POST", f"{at}/inference", misfit)
    assert (reply.status, reply.json()["status"]) == (400, "error")
    assert "nose" in reply.json()["error"]
    told = api.ok("GET", f"{at}/status")
    assert told["status"] == "healthy"
    assert told["diagnosis"] == reply.json()["diagnosis"]
    assert [each["name"] for each in told["diagnosis"]] == ["wrong_parameters"]
    assert "nose" in told["diagnosis"][0]["cause"]
    api.ok("POST", f"{at}/inference", FLOWER)
    assert api.ok("GET", f"{at}/status")["diagnosis"] == []
    api.ok("POST", f"{at}/stop")


@pytest.fixture
def silent() -> Iterator[int]:
    """A store that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_model_on_its_way_is_initializing(api: Api, silent: int) -> None:
    at = f"/orgs/{ORG}"
    storage = {"uri": "s3://bucket", "endpoint": f"http://127.0.0.1:{silent}"}
    workspace = api.ok("POST", f"{at}/workspaces", storage)["id"]
    experiment = api.ok("POST", f"{at}/experiments", {"network_arch": "pilotlight", "workspace": workspace})["id"]
    parent = api.ok("POST", f"{at}/experiments/{experiment}/jobs", {"artifact": "model.onnx"})["id"]
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)

    def running() -> bool:
        return bool(api.ok("GET", f"{at}/status")["pod_status"] == "Running")

    api.wait(running, "its process to run")
    told = api.ok("GET", f"{at}/status")
    assert (told["status"], told["server_initializing"], told["model_loading"]) == ("initializing", True, False)
    reply = api.ask("POST", f"{at}/inference", FLOWER)
    assert (reply.status, reply.headers["retry-after"]) == (202, "5")
    assert reply.json() == {
        "job_id": job, "status": "initializing",
        "message": "Server is initializing (downloading files, setting up), please wait",
    }  # fmt: skip
    api.ok("POST", f"{at}/stop")


def test_a_model_that_does_not_fit_the_gpu_is_told_with_what_to_do(api: Api, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OUT_OF_MEMORY)
    at, job = started(api, tmp_path / "model.py")
    told = wait_status(api, at, "error")
    assert "CUDA out of memory" in str(told["model_load_error"])
    assert told["initialization_error"] is None
    reply = api.ask("POST", f"{at}/inference", NUMBER)
    assert (reply.status, reply.json()["status"], reply.json()["job_id"]) == (503, "error", job)
    assert reply.json()["error"].startswith("Model failed to load: ")
    assert "CUDA out of memory" in reply.json()["error"]
    assert "cuda_out_of_memory" in [each["name"] for each in reply.json()["diagnosis"]]
    api.ok("POST", f"{at}/stop")


def test_a_damaged_model_is_a_load_error(api: Api, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(IRIS.read_bytes()[:100])
    at, _ = started(api, tmp_path / "model.onnx")
    told = wait_status(api, at, "error")
    assert told["model_load_error"]
    assert api.ask("POST", f"{at}/inference", FLOWER).status == 503
    api.ok("POST", f"{at}/stop")


def test_a_model_that_is_not_there_is_an_initialization_error(api: Api, tmp_path: Path) -> None:
    at, _ = started(api, tmp_path / "nothing.onnx")
    told = wait_status(api, at, "error")
    assert "does not exist" in str(told["initialization_error"])
    reply = api.ask("POST", f"{at}/inference", FLOWER)
    assert reply.status == 503
    assert reply.json()["error"].startswith("Server initialization failed: ")
    api.ok("POST", f"{at}/stop")
    assert api.ask("GET", f"{at}/status").status == 404


def test_a_credential_that_is_not_set_is_an_initialization_error(api: Api) -> None:
    at = f"/orgs/{ORG}"
    storage = {"uri": "s3://bucket", "credentials": {"access_key": "env:WORKSPACE_ACME__UNSET"}}
    workspace = api.ok("POST", f"{at}/workspaces", storage)["id"]
    experiment = api.ok("POST", f"{at}/experiments", {"network_arch": "pilotlight", "workspace": workspace})["id"]
    parent = api.ok("POST", f"{at}/experiments/{experiment}/jobs", {"artifact": "model.onnx"})["id"]
    job = api.start(experiment, parent)
    told = api.ok("GET", f"{api.microservice(experiment, job)}/status")
    assert (told["status"], told["job_id"], told["pod_status"]) == ("error", job, "Pending")
    assert "env:WORKSPACE_ACME__UNSET is not set" in told["initialization_error"]
    assert [each["name"] for each in told["diagnosis"]] == ["storage_denied"]
    assert api.ask("POST", f"{api.microservice(experiment, job)}/inference", FLOWER).status == 503
    api.ok("POST", f"{api.microservice(experiment, job)}/stop")


def test_an_empty_body_is_told_with_what_it_must_have(api: Api, iris: tuple[str, str]) -> None:
    reply = api.ask("POST", f"/orgs/{ORG}/experiments/{iris[0]}/inference_microservice/start", b"")
    assert (reply.status, reply.json()["error"]) == (400, "the body is empty, must be a JSON object with parent_id")
    login = api.ask("POST", "/login", b"", token="")
    assert (login.status, login.json()["error"].endswith("with ngc_key, ngc_org_name")) == (400, True)


def test_a_process_that_dies_is_told_and_not_202_for_ever(api: Api, tmp_path: Path) -> None:
    """Each time that it is started."""
    (tmp_path / "model.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    at, _ = started(api, tmp_path / "model.py")
    told = wait_status(api, at, "error")
    assert "signal 9" in str(told["initialization_error"])
    assert told["pod_status"] == "Failed"
    assert "crashed" in [each["name"] for each in told["diagnosis"]]  # type: ignore[attr-defined]
    api.wait(lambda: api.ask("POST", f"{at}/inference", FLOWER).status == 503, "its death to be told")
    api.ok("POST", f"{at}/stop")


def test_a_process_that_was_killed_is_started_again(api: Api, iris: tuple[str, str]) -> None:
    at, job = started(api, IRIS)
    api.wait_loaded(at)
    api.ok("POST", f"{at}/inference", FLOWER)
    (pid,) = predictors(job)
    os.kill(pid, signal.SIGKILL)
    api.wait(lambda: predictors(job) not in ([], [pid]), "another process")
    api.wait(lambda: api.ask("POST", f"{at}/inference", FLOWER).status == 200, "an answer of it")
    api.ok("POST", f"{at}/stop")
    assert not predictors(job)


def test_a_network_of_a_container_is_refused_where_there_are_none(api: Api, tmp_path: Path) -> None:
    experiment, parent = api.train(tmp_path, "cosmos-rl")
    at = api.microservice(experiment, api.start(experiment, parent))
    told = wait_status(api, at, "error")
    assert "is a container image" in str(told["initialization_error"])
    api.ok("POST", f"{at}/stop")


@pytest.mark.parametrize("number", [0, -1])
def test_less_than_one_gpu_is_refused_by_name(api: Api, iris: tuple[str, str], number: int) -> None:
    at = f"/orgs/{ORG}/experiments/{iris[0]}/inference_microservice/start"
    reply = api.ask("POST", at, {"parent_id": iris[1], "num_gpus": number})
    assert (reply.status, reply.json()["error"]) == (400, f"num_gpus = {number}, must be at least 1")


def test_what_was_never_started_is_404(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    for job in ("nobody", parent):
        at = api.microservice(experiment, job)
        for method, verb in (("GET", "status"), ("POST", "inference"), ("POST", "stop")):
            assert api.ask(method, f"{at}/{verb}", b"{}").status == 404


def test_pictures_of_an_opened_folder_are_classified_and_others_refused(api: Api, tmp_path: Path) -> None:
    shapes = {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))}
    folder = write_model(tmp_path, "model", NODES, *shapes)
    (folder / "parameters.yaml").write_text(DECLARED)
    opened = Path(api.platform.env["PILOTLIGHT_MEDIA_ROOTS"])
    for colour in COLOURS:
        (opened / f"{colour}.png").write_bytes(picture(colour))
    experiment, parent = api.train(folder, "classification")
    at = api.microservice(experiment, api.start(experiment, parent))
    api.wait_loaded(at)
    one = api.ok("POST", f"{at}/inference", {"images": str(opened / "red.png")})["results"]
    assert one["response"] == "red"
    body = {"images": [str(opened / f"{colour}.png") for colour in COLOURS], "batch_size": 2}
    many = api.ok("POST", f"{at}/inference", body)["results"]["predictions"]
    assert [each["label"] for each in many] == list(COLOURS)
    for refused in ("/etc/hostname", "https://nobody.example/a.png", "s3://bucket/a.png"):
        reply = api.ask("POST", f"{at}/inference", {"images": [refused]})
        assert (reply.status, reply.json()["error"].startswith("media[0] ")) == (400, True)
        assert [each["name"] for each in reply.json()["diagnosis"]] == ["wrong_media"]
    assert api.ok("GET", f"{at}/status")["diagnosis"] == []  # the model is not at fault
    api.ok("POST", f"{at}/stop")
