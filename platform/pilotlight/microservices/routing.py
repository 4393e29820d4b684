"""Which microservice a request or a stop is for. Pure.

An explicit job id wins, then the network architecture, then the only one there is. Where several would do, none is
picked: `Ambiguous` carries them, for a person to choose.
"""

from collections.abc import Mapping

from pilotlight.errors import NotFound, UsageError
from pilotlight.microservices.model import Entry
from pilotlight.microservices.registry import State

START = "platformctl microservice start"


class Ambiguous(UsageError):
    """Several would do; `candidates` are all of them."""

    def __init__(self, message: str, candidates: Mapping[str, Entry]) -> None:
        lines = [f"  {job_id}  {entry.network_arch}  {entry.host_url}  started {entry.started_at}"
                 for job_id, entry in candidates.items()]  # fmt: skip
        super().__init__("\n".join([message, *lines]), "name one of them by its job id")
        self.candidates = candidates


def choose(state: State, job_id: str = "", network_arch: str = "") -> str:
    if job_id:
        return known(state, job_id)
    if network_arch:
        return _of_arch(state, network_arch)
    if not state.entries:
        raise NotFound("no microservice is running", f"{START} starts one")
    if len(state.entries) > 1:
        raise Ambiguous(f"{len(state.entries)} microservices are running:", state.entries)
    return next(iter(state.entries))


def known(state: State, job_id: str) -> str:
    if job_id not in state.entries:
        there = ", ".join(state.entries) or "none"
        raise NotFound(f"no microservice has the job id {job_id}; there are {there}", "platformctl microservice list")
    return job_id


def _of_arch(state: State, network_arch: str) -> str:
    found = {name: entry for name, entry in state.entries.items() if entry.network_arch == network_arch}
    if not found:
        raise NotFound(f"no microservice for {network_arch} is running", f"{START} {network_arch} starts one")
    if len(found) > 1:
        raise Ambiguous(f"{len(found)} microservices for {network_arch} are running:", found)
    return next(iter(found))


def to_stop(state: State, job_id: str = "") -> str:
    """Without an id the latest; whoever asks confirms it."""
    if job_id:
        return known(state, job_id)
    if state.latest not in state.entries:
        raise NotFound("no microservice is running, so there is none to stop", "platformctl microservice list")
    return state.latest
