"""Credentials of a workspace, resolved where they are used and not stored.

A workspace has references: `env:NAME` is a variable of this process, `file:NAME` a file below PILOTLIGHT_SECRETS_DIR,
such as a mounted Secret. Only variables and files for credentials of stores may be referenced.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.microservices.model import Workspace

ENV_SECRETS_DIR: Final = "PILOTLIGHT_SECRETS_DIR"
NAMES: Final = frozenset({"access_key", "secret_key", "session_token", "account_key", "sas_token"})
VARIABLES: Final = re.compile(
    r"WORKSPACE_[A-Z0-9_]+|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)|AZURE_STORAGE_\w+"
)
_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def check(workspace: Workspace) -> None:
    """Raise for an invalid reference; called when a workspace is registered."""
    for name, reference in workspace.credentials.items():
        if name not in NAMES:
            raise UsageError(f"credentials.{name} is not known, must be one of {', '.join(sorted(NAMES))}")
        kind, _, rest = reference.partition(":")
        if kind == "env" and VARIABLES.fullmatch(rest):
            continue
        if not (kind == "file" and _FILE.fullmatch(rest)):
            raise UsageError(
                f"credentials.{name} must be env:NAME of a variable WORKSPACE_* (or AWS's and Azure's own), or"
                f" file:NAME below {ENV_SECRETS_DIR}"
            )


def values(workspace: Workspace, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the values. Raise with the reference of a missing one."""
    check(workspace)
    return {name: _value(name, reference, environ) for name, reference in workspace.credentials.items()}


def _value(name: str, reference: str, environ: Mapping[str, str]) -> str:
    kind, _, rest = reference.partition(":")
    value = environ.get(rest, "") if kind == "env" else _from_file(rest, environ)
    if not value:
        raise UsageError(
            f"credentials.{name}: {reference} is not set where this runs", "set it for the process that serves the API"
        )
    return value


def _from_file(name: str, environ: Mapping[str, str]) -> str:
    folder = environ.get(ENV_SECRETS_DIR, "")
    if not folder:
        raise UsageError(f"file:{name}: {ENV_SECRETS_DIR} is not set where this runs")
    root = Path(folder).resolve()
    path = (root / name).resolve()  # a mounted Secret is a symlink
    if not path.is_relative_to(root):
        raise UsageError(f"file:{name} leads out of {ENV_SECRETS_DIR}")
    try:
        return path.read_text().strip()
    except OSError:
        return ""
