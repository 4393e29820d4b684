"""Services at run time as pure values, for tests of what is decided about them: no process, no file, no clock."""

from collections.abc import Mapping
from typing import Any

from pilotlight.targets.local.control.service_state import Revision, ServiceRun
from pilotlight.targets.local.manifests.service_spec_types import (
    ContainerSpec,
    Mode,
    Probe,
    RevisionSpec,
    ServiceSpec,
    WorkloadSpec,
)
from pilotlight.targets.local.scaling.types import Kpa, Scaling
from pilotlight.targets.local.supervisor.replica_record import Checks, Replica, State
from pilotlight.targets.target import Share


def container(args: tuple[str, ...] = (), env: Mapping[str, str] | None = None, cpu: float = 1.0) -> ContainerSpec:
    return ContainerSpec("main", "pilotlight/predictor:1", (), args, env or {}, 8080, cpu_request=cpu)


def revision(
    name: str = "iris-predictor-1", workload: str = "iris-predictor", scaling: Scaling | None = None, **fields: Any
) -> RevisionSpec:
    role = workload.rpartition("-")[2]
    rules = scaling if scaling is not None else Kpa()
    return RevisionSpec("default", "iris", workload, role, name, container(), rules, **fields)


def workload(newest: RevisionSpec, *traffic: Share, mode: Mode = "serverless", **fields: Any) -> WorkloadSpec:
    shares = traffic or (Share(newest.name, 100),)
    return WorkloadSpec(newest.workload, newest.role, mode, newest, shares, **fields)


def service(*workloads: WorkloadSpec, entry: tuple[tuple[str, int], ...] = (), **fields: Any) -> ServiceSpec:
    first = workloads[0]
    return ServiceSpec(
        "default", "iris", workloads, entry or ((first.name, 100),), ("iris.default.localhost",), **fields
    )


def service_spec(*workloads: str) -> ServiceSpec:
    return service(*(workload(revision(f"{name}-1", name)) for name in workloads))


def running(spec: ServiceSpec, now: float = 0.0, *, ready: bool = True) -> ServiceRun:
    """As after a first deploy; `ready`: its replicas have answered."""
    run = ServiceRun(("default", "iris"), 1, spec)
    run.update(1, spec, now)
    run.history.clear()
    for found in run.revisions.values():
        found.ready_once = ready
    return run


def revision_of(run: ServiceRun, name: str = "iris-predictor-1") -> Revision:
    return run.revisions[name]


def replica(name: str = "iris-predictor-1", state: State = "ready", own: str = "", **fields: Any) -> Replica:
    workload_name = name.rpartition("-")[0]
    checks = Checks(Probe("/v2/health/ready", 1))
    return Replica(own or f"{name}-{state}", "default", "iris", workload_name, name, checks, state, **fields)
