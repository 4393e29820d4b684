"""Routes of workspaces, experiments and jobs, over registering.py."""

from typing import TypeVar

from aiohttp import web
from msgspec import json

from pilotlight.api.gates import is_admin
from pilotlight.microservices import registering
from pilotlight.microservices.api import bodies
from pilotlight.microservices.api.desk import CONTEXT
from pilotlight.microservices.api.written import json_response
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.registering import Registrar

T = TypeVar("T")


async def add_workspace(request: web.Request) -> web.Response:
    body = await _body(request, bodies.NewWorkspace)
    storage = Workspace(body.uri, body.endpoint, body.region, body.account, body.credentials)
    return json_response(_registrar(request).workspace(storage, body.name, body.id), 201)


async def list_workspaces(request: web.Request) -> web.Response:
    return json_response(bodies.Workspaces(tuple(request.app[CONTEXT].directory.workspaces(_org(request)))))


async def get_workspace(request: web.Request) -> web.Response:
    return json_response(request.app[CONTEXT].directory.workspace(_org(request), request.match_info["workspace"]))


async def delete_workspace(request: web.Request) -> web.Response:
    request.app[CONTEXT].directory.delete_workspace(_org(request), request.match_info["workspace"])
    return json_response(bodies.Deleted(request.match_info["workspace"]))


async def add_experiment(request: web.Request) -> web.Response:
    body = await _body(request, bodies.NewExperiment)
    return json_response(_registrar(request).experiment(body.network_arch, body.workspace, body.name, body.id), 201)


async def list_experiments(request: web.Request) -> web.Response:
    return json_response(bodies.Experiments(tuple(request.app[CONTEXT].directory.experiments(_org(request)))))


async def get_experiment(request: web.Request) -> web.Response:
    return json_response(request.app[CONTEXT].directory.experiment(_org(request), request.match_info["experiment"]))


async def delete_experiment(request: web.Request) -> web.Response:
    request.app[CONTEXT].directory.delete_experiment(_org(request), request.match_info["experiment"])
    return json_response(bodies.Deleted(request.match_info["experiment"]))


async def add_job(request: web.Request) -> web.Response:
    body = await _body(request, bodies.NewJob)
    registrar, experiment = _registrar(request), request.match_info["experiment"]
    return json_response(registrar.job(experiment, body.kind, body.status, body.artifact, body.parent, body.id), 201)


async def list_jobs(request: web.Request) -> web.Response:
    records = request.app[CONTEXT].directory.jobs(_org(request), request.match_info["experiment"])
    return json_response(bodies.Jobs(tuple(records)))


async def get_job(request: web.Request) -> web.Response:
    return json_response(registering.get_job(request.app[CONTEXT].directory, *_job_path(request)))


async def update_job(request: web.Request) -> web.Response:
    body = await _body(request, bodies.JobChange)
    return json_response(_registrar(request).change(*_job_path(request)[1:], body.status, body.artifact))


async def delete_job(request: web.Request) -> web.Response:
    org, experiment, id = _job_path(request)  # noqa: A001
    registering.get_job(request.app[CONTEXT].directory, org, experiment, id)
    request.app[CONTEXT].directory.delete_job(org, id)
    return json_response(bodies.Deleted(id))


def _registrar(request: web.Request) -> Registrar:
    context = request.app[CONTEXT]
    return Registrar(context.directory, _org(request), limits=context.limits, trusted=is_admin(request))


async def _body(request: web.Request, kind: type[T]) -> T:
    return json.decode(await request.read(), type=kind)


def _org(request: web.Request) -> str:
    return request.match_info["org"]


def _job_path(request: web.Request) -> tuple[str, str, str]:
    return _org(request), request.match_info["experiment"], request.match_info["job"]
