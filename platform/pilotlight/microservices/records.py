"""Records of an org: workspaces, experiments and jobs. directory.py stores them."""

import re
from typing import Final, Literal

from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.model import Entry, Workspace

Kind = Literal["train", "inference_microservice", "batch"]
Status = Literal["pending", "running", "done", "error", "canceled", "stopping", "stopped"]

DONE: Final = "done"
# A microservice in one of these exists; in any other it has ended and its id cannot be reused.
ACTIVE: Final = frozenset[Status]({"pending", "running", "error"})
NOT_STOPPED: Final = ACTIVE | frozenset[Status]({"stopping"})  # it may still be running
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
    """An experiment. `workspace` is an id; empty: its jobs name artifacts by full paths."""

    id: str
    org: str
    network_arch: str
    workspace: str
    name: str
    created_at: str


class JobRecord(Struct, frozen=True):
    """One job of an experiment. `message`: why it failed; `entry`: where a microservice runs."""

    id: str
    org: str
    experiment: str
    kind: Kind
    status: Status
    created_at: str
    updated_at: str
    artifact: str = ""  # trained or served model: within the workspace, or a full path or URI
    parent: str = ""
    platform: str = ""
    entry: Entry | None = None
    message: str = ""


def check_org(org: str) -> str:
    return _check_pattern(ORG, "org", org, "lower-case letters, digits and single hyphens, at most 63, as a namespace")


def check_id(field: str, value: str) -> str:
    return _check_pattern(IDENTIFIER, field, value, "letters, digits, '.', '_' and '-', at most 128")


def _check_pattern(pattern: re.Pattern[str], field: str, value: str, words: str) -> str:
    if not pattern.fullmatch(value):
        raise UsageError(f"{field} = {value[:80]!r}, must be {words}")
    return value
