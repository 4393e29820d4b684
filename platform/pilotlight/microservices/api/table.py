"""Route table of the microservice area, with request and response types, for app.py and the OpenAPI document."""

from typing import Any, Final

from pilotlight.api.areas import Area, Route
from pilotlight.api.gates import allow_anonymous
from pilotlight.microservices import replies
from pilotlight.microservices.api import access, batches, bodies, keeping, serving
from pilotlight.microservices.records import Experiment, JobRecord, StoredWorkspace
from pilotlight.microservices.replies import Completed, Failed, Started, StatusReport, Stopped, Waiting

ORG: Final = "/api/v1/orgs/{org}"
WORKSPACE: Final = f"{ORG}/workspaces/{{workspace}}"
EXPERIMENT: Final = f"{ORG}/experiments/{{experiment}}"
JOB: Final = f"{EXPERIMENT}/jobs/{{job}}"
MICROSERVICE: Final = f"{JOB}/inference_microservice"
BATCH: Final = f"{JOB}/batch_inference"

LOGIN: Final = Area(
    "login",
    allow_anonymous,
    (Route("POST", "/api/v1/login", access.login, "A token for an org's key.", bodies.Login, {200: bodies.LoggedIn}),),
)
MEMBERS: Final = Area(
    "microservices",
    access.require_member,
    (
        Route(
            "GET", f"{ORG}/workspaces", keeping.list_workspaces, "Workspaces of an org.",
            responses={200: bodies.Workspaces},
        ),
        Route(
            "POST", f"{ORG}/workspaces", keeping.add_workspace, "Add a workspace.", bodies.NewWorkspace,
            {201: StoredWorkspace},
        ),
        Route("GET", WORKSPACE, keeping.get_workspace, "One workspace.", responses={200: StoredWorkspace}),
        Route("DELETE", WORKSPACE, keeping.delete_workspace, "Delete a workspace.", responses={200: bodies.Deleted}),
        Route(
            "GET", f"{ORG}/experiments", keeping.list_experiments, "Experiments of an org.",
            responses={200: bodies.Experiments},
        ),
        Route(
            "POST", f"{ORG}/experiments", keeping.add_experiment, "Add an experiment.", bodies.NewExperiment,
            {201: Experiment},
        ),
        Route("GET", EXPERIMENT, keeping.get_experiment, "One experiment.", responses={200: Experiment}),
        Route(
            "DELETE", EXPERIMENT, keeping.delete_experiment, "Delete an experiment with its jobs.",
            responses={200: bodies.Deleted},
        ),
        Route("GET", f"{EXPERIMENT}/jobs", keeping.list_jobs, "Jobs of an experiment.", responses={200: bodies.Jobs}),
        Route(
            "POST", f"{EXPERIMENT}/jobs", keeping.add_job, "Add a training job that ran elsewhere.", bodies.NewJob,
            {201: JobRecord},
        ),
        Route("GET", JOB, keeping.get_job, "One job.", responses={200: JobRecord}),
        Route("PATCH", JOB, keeping.update_job, "Update a training job.", bodies.JobChange, {200: JobRecord}),
        Route(
            "DELETE", JOB, keeping.delete_job, "Delete a job; its id cannot be reused.",
            responses={200: bodies.Deleted},
        ),
        Route(
            "POST", f"{EXPERIMENT}/inference_microservice/start", serving.start,
            "Start a microservice with the model of a finished training.", bodies.Start, {200: Started},
        ),
        Route(
            "POST", f"{MICROSERVICE}/inference", serving.inference, "Run inference.",
            dict[str, Any], {200: Completed, 202: Waiting, 400: Failed, 503: (Failed, Waiting)}, model_body=True,
        ),
        Route("GET", f"{MICROSERVICE}/status", serving.status, "Its status.", responses={200: StatusReport}),
        Route(
            "POST", f"{MICROSERVICE}/stop", serving.stop, "Stop it; its id cannot be reused.",
            responses={200: Stopped, 503: replies.Failed},
        ),
        Route(
            "POST", f"{EXPERIMENT}/batch_inference/start", batches.start,
            "Run the model of a finished training over a folder once.", batches.StartBatch, {200: batches.BatchReport},
        ),
        Route("GET", f"{BATCH}/status", batches.status, "Its progress.", responses={200: batches.BatchReport}),
        Route("POST", f"{BATCH}/cancel", batches.cancel, "Cancel it.", responses={200: batches.BatchReport}),
        Route(
            "POST", f"{BATCH}/resume", batches.resume, "Continue with the files that have no result.",
            responses={200: batches.BatchReport},
        ),
    ),
)  # fmt: skip
AREAS: Final = (LOGIN, MEMBERS)
