"""Starts and stops that meet, and an API that ends between them: each has one outcome, and nothing is left behind."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from tests.embedded import IRIS, Platform
from tests.platform.microservices.api.conftest import FLOWER, ORG, Api
from tests.platform.microservices.conftest import predictors


def statuses(api: Api, experiment: str) -> dict[str, str]:
    jobs = api.ok("GET", f"/orgs/{ORG}/experiments/{experiment}/jobs")["jobs"]
    return {job["id"]: job["status"] for job in jobs if job["kind"] == "inference_microservice"}


def test_two_starts_at_once_are_two_microservices(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    with ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(lambda _: api.start(experiment, parent), range(2)))
    assert len(set(jobs)) == 2
    for job in jobs:
        api.wait_loaded(api.microservice(experiment, job))
    with ThreadPoolExecutor(4) as pool:
        at = [f"{api.microservice(experiment, job)}/inference" for job in jobs * 2]
        assert all(pool.map(lambda path: api.ok("POST", path, FLOWER), at))
    for job in jobs:
        api.ok("POST", f"{api.microservice(experiment, job)}/stop")
    assert set(statuses(api, experiment).values()) == {"stopped"}


def test_a_stop_during_the_start_leaves_nothing(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    assert api.ok("POST", f"{at}/stop")["status"] == "stopped"
    assert api.ask("GET", f"{at}/status").status == 404
    assert statuses(api, experiment) == {job: "stopped"}
    assert not predictors(job)


def test_two_stops_at_once_are_one_and_a_later_one_finds_nothing(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    at = api.microservice(experiment, api.start(experiment, parent))
    api.wait_loaded(at)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: api.ask("POST", f"{at}/stop").status, range(2)))
    assert 200 in found
    assert set(found) <= {200, 404}
    assert api.ask("POST", f"{at}/stop").status == 404


def test_a_running_one_is_not_deleted_and_a_stopped_ones_id_is_spent(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at, jobs = api.microservice(experiment, job), f"/orgs/{ORG}/experiments/{experiment}/jobs"
    assert api.ask("DELETE", f"{jobs}/{job}").status == 409
    assert api.ask("DELETE", f"/orgs/{ORG}/experiments/{experiment}").status == 409
    api.ok("POST", f"{at}/stop")
    api.ok("DELETE", f"{jobs}/{job}")
    reused = api.ask("POST", jobs, {"artifact": "/x", "id": job}, token=api.admin)
    assert (reused.status, "used once" in reused.json()["error"]) == (409, True)


def test_what_runs_goes_on_when_the_api_is_killed(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    at = api.microservice(experiment, api.start(experiment, parent))
    api.ok("DELETE", f"/orgs/{ORG}/experiments/{experiment}/jobs/{parent}")  # it knows its model itself
    api.wait_loaded(at)
    pod = api.ok("GET", f"{at}/status")["pod_name"]
    api.platform.kill_control()
    api.wait_back()
    assert api.ok("GET", f"{at}/status")["pod_name"] == pod  # the token is good still, too
    assert api.ok("POST", f"{at}/inference", FLOWER)["status"] == "completed"
    api.ok("POST", f"{at}/stop")


def test_a_start_that_the_end_of_the_api_cut_off_is_made_up_for(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    api.wait(lambda: bool(predictors(job)), "its process to begin")
    api.platform.kill_control()
    api.wait_back()
    api.wait_loaded(at)
    assert len(predictors(job)) == 1
    assert api.ok("POST", f"{at}/inference", FLOWER)["status"] == "completed"
    api.ok("POST", f"{at}/stop")
    assert not predictors(job)


def test_a_stop_that_the_end_of_the_api_cut_off_is_made_up_for(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.ask, "POST", f"{at}/stop")
        api.wait(lambda: statuses(api, experiment)[job] in ("stopping", "stopped"), "the stop to be written down")
        api.platform.kill_control()
        with suppress(OSError, HTTPException):
            asked.result()
    api.wait_back()
    api.wait(lambda: statuses(api, experiment)[job] == "stopped", "the stop to be made up for")
    assert not predictors(job)
    assert api.ask("GET", f"{at}/status").status == 404


def test_a_stop_that_fails_is_told_and_can_be_asked_for_again(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    api.wait_loaded(at)
    registry = Path(api.platform.env["PILOTLIGHT_MICROSERVICE_REGISTRY"])
    row = next(line for line in api.ctl("microservice", "list").splitlines() if job in line)
    assert f"{job}  " in row  # not the latest of the command line
    assert "  unix socket  running  ready  " in row
    registry.chmod(0o666)  # nobody trusts a registry that others may write to
    failed = api.ask("POST", f"{at}/stop")
    registry.chmod(0o600)
    assert (failed.status, failed.json()["status"], failed.json()["job_id"]) == (503, "error", job)
    assert failed.json()["error"].startswith("It could not be stopped: ")
    assert api.ok("GET", f"{at}/status")["status"] == "stopping"
    refused = api.ask("POST", f"{at}/inference", FLOWER)
    assert (refused.status, refused.json()["status"]) == (503, "not_ready")
    assert api.ok("POST", f"{at}/stop")["status"] == "stopped"
    assert api.ask("POST", f"{at}/inference", FLOWER).status == 404


def test_what_runs_ends_with_the_platform_and_comes_back_with_it(tmp_path: Path) -> None:
    env = {"PILOTLIGHT_MICROSERVICE_REGISTRY": str(tmp_path / "registry.json"), "HF_TOKEN": "hf_of-the-operator"}
    with Platform(tmp_path / "home", env) as platform:
        api = Api(platform)
        api.token = api.admin
        experiment, parent = api.train(IRIS)
        job = api.start(experiment, parent)
        at = api.microservice(experiment, job)
        api.wait_loaded(at)
        assert predictors(job)
    assert not predictors(job)
    with platform:
        api.wait(lambda: bool(api.ok("GET", f"{at}/status")["model_loaded"]), "the model to be loaded again")
        assert api.ok("POST", f"{at}/inference", FLOWER)["status"] == "completed"
        (pid,) = predictors(job)
        assert b"HF_TOKEN=hf_of-the-operator" in Path(f"/proc/{pid}/environ").read_bytes()  # it names this secret
        api.ok("POST", f"{at}/stop")
