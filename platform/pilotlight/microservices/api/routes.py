"""Route table of the microservice area, with request and response types, for the application and OpenAPI."""

from typing import Any, Final

from pilotlight.api.middlewares import allow_anonymous
from pilotlight.api.route_types import Area, Route
from pilotlight.microservices.api import batches, jobs, org_records, request_bodies
from pilotlight.microservices.jobs.health_responses import Completed, Failed, Started, StatusReport, Stopped, Waiting
from pilotlight.microservices.registry.records import Experiment, JobRecord, StoredWorkspace

ORG: Final = "/api/v1/orgs/{org}"
WORKSPACE: Final = f"{ORG}/workspaces/{{workspace}}"
EXPERIMENT: Final = f"{ORG}/experiments/{{experiment}}"
JOB: Final = f"{EXPERIMENT}/jobs/{{job}}"
MICROSERVICE: Final = f"{JOB}/inference_microservice"
BATCH: Final = f"{JOB}/batch_inference"

LOGIN: Final = Area(
    "login", allow_anonymous,
    (
        Route(
            "POST", "/api/v1/login", org_records.login, "A token for an org's key.", request_bodies.Login,
            {200: request_bodies.LoggedIn},
        ),
    ),
)  # fmt: skip
MEMBERS: Final = Area(
    "microservices",
    org_records.require_member,
    (
        Route(
            "GET", f"{ORG}/workspaces", org_records.list_workspaces, "Workspaces of an org, 100 at a time.",
            responses={200: request_bodies.Workspaces}, query=("after",),
        ),
        Route(
            "POST", f"{ORG}/workspaces", org_records.add_workspace, "Add a workspace.", request_bodies.NewWorkspace,
            {201: StoredWorkspace},
        ),
        Route("GET", WORKSPACE, org_records.get_workspace, "One workspace.", responses={200: StoredWorkspace}),
        Route("DELETE", WORKSPACE, org_records.delete_workspace, "Delete a workspace.",
              responses={200: request_bodies.Deleted}),
        Route(
            "GET", f"{ORG}/experiments", org_records.list_experiments, "Experiments of an org, 100 at a time.",
            responses={200: request_bodies.Experiments}, query=("after",),
        ),
        Route(
            "POST", f"{ORG}/experiments", org_records.add_experiment, "Add an experiment.",
            request_bodies.NewExperiment, {201: Experiment},
        ),
        Route("GET", EXPERIMENT, org_records.get_experiment, "One experiment.", responses={200: Experiment}),
        Route(
            "DELETE", EXPERIMENT, org_records.delete_experiment, "Delete an experiment with its jobs.",
            responses={200: request_bodies.Deleted},
        ),
        Route("GET", f"{EXPERIMENT}/jobs", org_records.list_jobs, "Jobs of an experiment, 100 at a time.",
              responses={200: request_bodies.Jobs}, query=("after",)),
        Route(
            "POST", f"{EXPERIMENT}/jobs", org_records.add_job, "Add a training job that ran elsewhere.",
            request_bodies.NewJob,
            {201: JobRecord},
        ),
        Route("GET", JOB, org_records.get_job, "One job.", responses={200: JobRecord}),
        Route(
            "PATCH", JOB, org_records.update_job, "Update a training job.", request_bodies.JobChange, {200: JobRecord},
        ),
        Route(
            "DELETE", JOB, org_records.delete_job, "Delete a job; its id cannot be reused.",
            responses={200: request_bodies.Deleted},
        ),
        Route(
            "POST", f"{EXPERIMENT}/inference_microservice/start", jobs.start,
            "Start a microservice with the model of a finished training.", request_bodies.Start, {200: Started},
        ),
        Route(
            "POST", f"{MICROSERVICE}/inference", jobs.inference, "Run inference.",
            dict[str, Any], {200: Completed, 202: Waiting, 400: Failed, 503: (Failed, Waiting)}, model_body=True,
        ),
        Route("GET", f"{MICROSERVICE}/status", jobs.status, "Its status.", responses={200: StatusReport}),
        Route(
            "GET", f"{MICROSERVICE}/logs", jobs.logs, "The end of its log, at most 50 lines.",
            responses={200: request_bodies.Logs, 503: Failed}, query=("tail",),
        ),
        Route(
            "POST", f"{MICROSERVICE}/stop", jobs.stop, "Stop it; its id cannot be reused.",
            responses={200: Stopped, 503: Failed},
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
    prefix="/api/v1/orgs/",
)  # fmt: skip
AREAS: Final = (LOGIN, MEMBERS)
