"""Selection of the microservice for a request or a stop. Pure.

By job id, else by network architecture, else the only one that runs. `Ambiguous` is raised where several match.
"""

from collections.abc import Mapping

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices.model import Entry
from pilotlight.microservices.registry import RegistryState

START = "platformctl microservice start"


class Ambiguous(UsageError):
    """Several microservices match: `candidates`."""

    def __init__(self, message: str, candidates: Mapping[str, Entry]) -> None:
        lines = [f"  {job_id}  {entry.network_arch}  {entry.host_url}  started {entry.started_at}"
                 for job_id, entry in candidates.items()]  # fmt: skip
        super().__init__("\n".join([message, *lines]), "name one of them by its job id")
        self.candidates = candidates


def choose(state: RegistryState, job_id: str = "", network_arch: str = "") -> str:
    if job_id:
        return check_known(state, job_id)
    if network_arch:
        return _of_arch(state, network_arch)
    if not state.entries:
        raise NotFound("no microservice is running", f"{START} starts one")
    if len(state.entries) > 1:
        raise Ambiguous(f"{len(state.entries)} microservices are running:", state.entries)
    return next(iter(state.entries))


def check_known(state: RegistryState, job_id: str) -> str:
    if job_id not in state.entries:
        there = ", ".join(state.entries) or "none"
        raise NotFound(f"no microservice has the job id {job_id}; there are {there}", "platformctl microservice list")
    return job_id


def _of_arch(state: RegistryState, network_arch: str) -> str:
    matches = {name: entry for name, entry in state.entries.items() if entry.network_arch == network_arch}
    if not matches:
        raise NotFound(f"no microservice for {network_arch} is running", f"{START} {network_arch} starts one")
    if len(matches) > 1:
        raise Ambiguous(f"{len(matches)} microservices for {network_arch} are running:", matches)
    return next(iter(matches))


def choose_to_stop(state: RegistryState, job_id: str = "") -> str:
    """Return the job to stop, without an id the latest; the caller asks for confirmation."""
    if job_id:
        return check_known(state, job_id)
    if state.latest not in state.entries:
        raise NotFound("no microservice is running, so there is none to stop", "platformctl microservice list")
    return state.latest
