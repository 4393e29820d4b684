"""Workspaces, experiments and jobs by REST: what a microservice is started from. Thin, over registering.py."""

from typing import TypeVar

from aiohttp import web
from msgspec import json

from pilotlight.api.gates import shows_admin
from pilotlight.microservices import registering
from pilotlight.microservices.api import bodies
from pilotlight.microservices.api.desk import DESK
from pilotlight.microservices.api.written import reply
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.registering import Registrar

T = TypeVar("T")


async def add_workspace(request: web.Request) -> web.Response:
    given = await _body(request, bodies.NewWorkspace)
    storage = Workspace(given.uri, given.endpoint, given.region, given.account, given.credentials)
    return reply(_registrar(request).workspace(storage, given.name, given.id), 201)


async def workspaces(request: web.Request) -> web.Response:
    return reply(bodies.Workspaces(tuple(request.app[DESK].directory.workspaces(_org(request)))))


async def workspace(request: web.Request) -> web.Response:
    return reply(request.app[DESK].directory.workspace(_org(request), request.match_info["workspace"]))


async def delete_workspace(request: web.Request) -> web.Response:
    request.app[DESK].directory.delete_workspace(_org(request), request.match_info["workspace"])
    return reply(bodies.Gone(request.match_info["workspace"]))


async def add_experiment(request: web.Request) -> web.Response:
    given = await _body(request, bodies.NewExperiment)
    return reply(_registrar(request).experiment(given.network_arch, given.workspace, given.name, given.id), 201)


async def experiments(request: web.Request) -> web.Response:
    return reply(bodies.Experiments(tuple(request.app[DESK].directory.experiments(_org(request)))))


async def experiment(request: web.Request) -> web.Response:
    return reply(request.app[DESK].directory.experiment(_org(request), request.match_info["experiment"]))


async def delete_experiment(request: web.Request) -> web.Response:
    request.app[DESK].directory.delete_experiment(_org(request), request.match_info["experiment"])
    return reply(bodies.Gone(request.match_info["experiment"]))


async def add_job(request: web.Request) -> web.Response:
    given = await _body(request, bodies.NewJob)
    registrar, experiment = _registrar(request), request.match_info["experiment"]
    return reply(registrar.job(experiment, given.kind, given.status, given.artifact, given.parent, given.id), 201)


async def jobs(request: web.Request) -> web.Response:
    found = request.app[DESK].directory.jobs(_org(request), request.match_info["experiment"])
    return reply(bodies.Jobs(tuple(found)))


async def job(request: web.Request) -> web.Response:
    return reply(registering.job_of(request.app[DESK].directory, *_place(request)))


async def change_job(request: web.Request) -> web.Response:
    given = await _body(request, bodies.JobChange)
    return reply(_registrar(request).change(*_place(request)[1:], given.status, given.artifact))


async def delete_job(request: web.Request) -> web.Response:
    org, experiment, id = _place(request)  # noqa: A001
    registering.job_of(request.app[DESK].directory, org, experiment, id)
    request.app[DESK].directory.delete_job(org, id)
    return reply(bodies.Gone(id))


def _registrar(request: web.Request) -> Registrar:
    desk = request.app[DESK]
    return Registrar(desk.directory, _org(request), limits=desk.limits, trusted=shows_admin(request))


async def _body(request: web.Request, kind: type[T]) -> T:
    return json.decode(await request.read(), type=kind)


def _org(request: web.Request) -> str:
    return request.match_info["org"]


def _place(request: web.Request) -> tuple[str, str, str]:
    return _org(request), request.match_info["experiment"], request.match_info["job"]
