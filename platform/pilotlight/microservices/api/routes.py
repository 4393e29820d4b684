"""Route table of the microservice area, with request and response types, for the application and OpenAPI."""

from typing import Any, Final

from pilotlight.api.middlewares import allow_anonymous
from pilotlight.api.route_types import Area, Route
from pilotlight.microservices.api import batches, jobs
from pilotlight.microservices.api import org_records as records
from pilotlight.microservices.api import request_bodies as bodies
from pilotlight.microservices.jobs.health_responses import Completed, Failed, Started, StatusReport, Stopped, Waiting
from pilotlight.microservices.jobs.org_resources import get_job
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Experiment, JobRecord, StoredWorkspace

ORG: Final = "/api/v1/orgs/{org}"
WORKSPACE: Final = f"{ORG}/workspaces/{{workspace}}"
EXPERIMENT: Final = f"{ORG}/experiments/{{experiment}}"
JOB: Final = f"{EXPERIMENT}/jobs/{{job}}"
MICROSERVICE: Final = f"{JOB}/inference_microservice"
BATCH: Final = f"{JOB}/batch_inference"

LOGIN: Final = Area(
    "login", allow_anonymous,
    (Route("POST", "/api/v1/login", records.login, "A token for an org's key.", bodies.Login, {200: bodies.LoggedIn}),),
)  # fmt: skip
MEMBERS: Final = Area(
    "microservices",
    records.require_member,
    (
        Route("GET", f"{ORG}/workspaces", records.lister(OrgStore.workspaces, bodies.Workspaces),
              "Workspaces of an org, 100 at a time.", responses={200: bodies.Workspaces}, query=("after",)),
        Route("POST", f"{ORG}/workspaces", records.add_workspace, "Add a workspace.", bodies.NewWorkspace,
              {201: StoredWorkspace}),
        Route("GET", WORKSPACE, records.getter(OrgStore.workspace), "One workspace.", responses={200: StoredWorkspace}),
        Route("DELETE", WORKSPACE, records.deleter(OrgStore.delete_workspace), "Delete a workspace.",
              responses={200: bodies.Deleted}),
        Route("GET", f"{ORG}/experiments", records.lister(OrgStore.experiments, bodies.Experiments),
              "Experiments of an org, 100 at a time.", responses={200: bodies.Experiments}, query=("after",)),
        Route("POST", f"{ORG}/experiments", records.add_experiment, "Add an experiment.", bodies.NewExperiment,
              {201: Experiment}),
        Route("GET", EXPERIMENT, records.getter(OrgStore.experiment), "One experiment.", responses={200: Experiment}),
        Route("DELETE", EXPERIMENT, records.deleter(OrgStore.delete_experiment), "Delete an experiment with its jobs.",
              responses={200: bodies.Deleted}),
        Route("GET", f"{EXPERIMENT}/jobs", records.lister(OrgStore.jobs, bodies.Jobs),
              "Jobs of an experiment, 100 at a time.", responses={200: bodies.Jobs}, query=("after",)),
        Route("POST", f"{EXPERIMENT}/jobs", records.add_job, "Register a training job.", bodies.NewJob,
              {201: JobRecord}),
        Route("GET", JOB, records.getter(get_job), "One job.", responses={200: JobRecord}),
        Route("PATCH", JOB, records.update_job, "Update a training job.", bodies.JobChange, {200: JobRecord}),
        Route("DELETE", JOB, records.deleter(records.delete_job), "Delete a job; its id cannot be reused.",
              responses={200: bodies.Deleted}),
        Route("POST", f"{EXPERIMENT}/inference_microservice/start", jobs.start,
              "Start a microservice with the model of a finished training.", bodies.Start, {200: Started}),
        Route("POST", f"{MICROSERVICE}/inference", jobs.inference, "Run inference.", dict[str, Any],
              {200: Completed, 202: Waiting, 400: Failed, 503: (Failed, Waiting)}, model_body=True),
        Route("GET", f"{MICROSERVICE}/status", jobs.status, "Its status.", responses={200: StatusReport}),
        Route("GET", f"{MICROSERVICE}/logs", jobs.logs, "The end of its log, at most 50 lines.",
              responses={200: bodies.Logs, 503: Failed}, query=("tail",)),
        Route("POST", f"{MICROSERVICE}/stop", jobs.stop, "Stop it; its id cannot be reused.",
              responses={200: Stopped, 503: Failed}),
        Route("POST", f"{EXPERIMENT}/batch_inference/start", batches.start,
              "Run the model of a finished training over a folder once.", batches.StartBatch,
              {200: batches.BatchReport}),
        Route("GET", f"{BATCH}/status", batches.status, "Its progress.", responses={200: batches.BatchReport}),
        Route("POST", f"{BATCH}/cancel", batches.cancel, "Cancel it.", responses={200: batches.BatchReport}),
        Route("POST", f"{BATCH}/resume", batches.resume, "Resume with the files that have no result.",
              responses={200: batches.BatchReport}),
    ),
    prefix="/api/v1/orgs/",
)  # fmt: skip
AREAS: Final = (LOGIN, MEMBERS)
