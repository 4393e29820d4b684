"""A microservice from login to stop, over HTTP, with a real model."""

from tests.platform.microservices.api.conftest import FLOWER, ORG, Api


def test_a_model_is_started_asked_watched_and_stopped(api: Api, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    job = api.start(experiment, parent)
    at = api.microservice(experiment, job)
    api.wait_loaded(at)

    status = api.ok("GET", f"{at}/status")
    assert {name: status[name] for name in ("job_id", "status", "pod_status", "model_loading")} == {
        "job_id": job, "status": "healthy", "pod_status": "Running", "model_loading": False,
    }  # fmt: skip
    assert status["pod_name"]
    assert status["initialization_error"] is None
    assert status["model_load_error"] is None

    answer = api.ok("POST", f"{at}/inference", FLOWER)
    assert (answer["status"], answer["job_id"]) == ("completed", job)
    assert answer["message"] == "Inference completed successfully"
    assert answer["results"]["outputs"]

    assert api.ok("POST", f"{at}/stop") == {
        "job_id": job, "status": "stopped", "message": "Inference microservice stopped successfully",
    }  # fmt: skip
    for method, verb in (("GET", "status"), ("POST", "inference"), ("POST", "stop")):
        assert api.ask(method, f"{at}/{verb}", FLOWER if verb == "inference" else None).status == 404
    kept = api.ok("GET", f"/orgs/{ORG}/experiments/{experiment}/jobs/{job}")
    assert kept["status"] == "stopped"
