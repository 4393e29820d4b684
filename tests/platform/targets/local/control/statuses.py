"""The status of a service that a test describes."""

from dataclasses import replace
from typing import Any

from tests.platform.targets.local.runs import revision, running, service, workload

from pilotlight.targets.local.control.service_state import ServiceRun
from pilotlight.targets.local.control.status import ServiceView, status_of
from pilotlight.targets.local.scaling.types import Kpa
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.target import ServiceStatus


def told(run: ServiceRun, *replicas: Replica, now: float = 10.0) -> ServiceStatus:
    """The status once the gateway has applied the table."""
    view = ServiceView(run, replicas, now, "http://127.0.0.1:8090")
    return status_of(replace(view, confirmed={row.name: row.percent for row in status_of(view).revisions}))


def single(*, ready: bool = True, **scaling: Any) -> ServiceRun:
    return running(service(workload(revision(scaling=Kpa(**scaling)))), ready=ready)


def conditions(status: ServiceStatus) -> dict[str, str]:
    return {condition.type: condition.status for condition in status.conditions}
