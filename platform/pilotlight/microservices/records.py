"""What the control API keeps of an org: workspaces, experiments and jobs. Values only; the directory stores them."""

import re
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.model import Entry, Workspace

Kind = Literal["train", "inference_microservice", "batch"]
Status = Literal["pending", "running", "done", "error", "canceled", "stopping", "stopped"]

FINISHED: Final = "done"
# A microservice in one of these is there to be asked for; in any other it has ended and its id is spent.
LIVING: Final = frozenset[Status]({"pending", "running", "error"})
THERE: Final = LIVING | frozenset[Status]({"stopping"})  # something of it may run
# An org is a namespace. Two hyphens together would let one org's variables begin as another's: workspaces.own_variable.
ORG: Final = re.compile(r"(?=.{1,63}$)[a-z0-9]+(-[a-z0-9]+)*")
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class StoredWorkspace(Struct, frozen=True):
    id: str
    org: str
    name: str
    storage: Workspace
    created_at: str


class Experiment(Struct, frozen=True):
    """`workspace` is the id of one; empty: its jobs name artifacts by whole paths."""

    id: str
    org: str
    network_arch: str
    workspace: str
    name: str
    created_at: str


class JobRecord(Struct, frozen=True):
    """One job of an experiment. `message` says why it failed, `entry` where a microservice runs."""

    id: str
    org: str
    experiment: str
    kind: Kind
    status: Status
    created_at: str
    updated_at: str
    artifact: str = ""  # the model that was trained or is served, within the workspace or by a whole path or URI
    parent: str = ""
    platform: str = ""
    entry: Entry | None = None
    message: str = ""


def check_org(org: str) -> str:
    return _matching(ORG, "org", org, "lower-case letters, digits and single hyphens, at most 63, as a namespace")


def check_id(field: str, value: str) -> str:
    return _matching(IDENTIFIER, field, value, "letters, digits, '.', '_' and '-', at most 128")


def check_member(field: str, value: str, kind: Any) -> str:
    if value not in get_args(kind):
        raise UsageError(f"{field} = {value}, must be one of {', '.join(get_args(kind))}")
    return value


def _matching(pattern: re.Pattern[str], field: str, value: str, words: str) -> str:
    if not pattern.fullmatch(value):
        raise UsageError(f"{field} = {value[:80]!r}, must be {words}")
    return value
