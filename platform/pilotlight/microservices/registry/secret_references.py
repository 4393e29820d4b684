"""Secrets, passed by the name of an environment variable and never in an argument, a file, a log or an error.

Credentials of a workspace are references, resolved where they are used and not stored: `env:NAME` is a variable of
this process, `file:NAME` a file below PILOTLIGHT_SECRETS_DIR, such as a mounted Secret, or of `secrets` in the home.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.records import Workspace
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.secret_redaction import is_secret, secret_values

# They would make a container report to a server, which these microservices never do.
FORBIDDEN: Final = ("TAO_LOGGING_SERVER_URL", "TAO_ADMIN_KEY")
ENV_SECRETS_DIR: Final = "PILOTLIGHT_SECRETS_DIR"
CREDENTIALS: Final = frozenset({"access_key", "secret_key", "session_token", "account_key", "sas_token"})
REFERENCE: Final = re.compile(
    r"env:(WORKSPACE_[A-Z0-9_]+|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)|AZURE_STORAGE_\w+)"
    r"|file:[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"
)


class MissingCredential(UsageError):
    """A credential that is not set in this process."""


def select(offered: Iterable[str], requested: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the offered secrets that are set, and the requested ones. Raise where a requested one is not set."""
    names = tuple(dict.fromkeys(requested))
    for name in names:
        if name in FORBIDDEN:
            raise UsageError(f"{name} is never passed to a microservice")
        if not environ.get(name):
            raise UsageError(f"the secret {name} is not set", f"export {name}=… first; its value is never prompted for")
    return tuple(dict.fromkeys([*(name for name in offered if environ.get(name)), *names]))


def check_plain(variables: Mapping[str, str]) -> None:
    """Raise if a variable passed by value, and so visible to others, is a secret."""
    for name in variables:
        if name in FORBIDDEN:
            raise UsageError(f"{name} is never passed to a microservice")
        if is_secret(name):
            raise UsageError(f"{name} is a secret: do not pass its value", f"export {name}=…, then --secret {name}")


def check_absent(what: str, text: str, environ: Mapping[str, str]) -> None:
    """Raise with the name of a secret if its value occurs in the text."""
    for name, value in secret_values(environ):
        if value in text:
            raise UsageError(f"{what} holds the value of {name}", "pass secrets in the environment only: remove it")


def check(workspace: Workspace) -> None:
    """Raise for an invalid reference; called when a workspace is registered."""
    for name, reference in workspace.credentials.items():
        if name not in CREDENTIALS:
            raise UsageError(f"credentials.{name} is unknown, must be one of {', '.join(sorted(CREDENTIALS))}")
        if not REFERENCE.fullmatch(reference):
            raise UsageError(
                f"credentials.{name} must be env:NAME of a variable WORKSPACE_* (or AWS's and Azure's own), or"
                f" file:NAME below {ENV_SECRETS_DIR} or `secrets` of the home folder"
            )


def values(workspace: Workspace, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the values. Raise with the reference of a missing one."""
    check(workspace)
    found = dict[str, str]()
    for name, reference in workspace.credentials.items():
        kind, _, rest = reference.partition(":")
        found[name] = environ.get(rest, "") if kind == "env" else _from_file(rest, environ)
        if not found[name]:
            raise MissingCredential(
                f"credentials.{name}: {reference} is not set in this process",
                "set it for the process that serves the API, or by platformctl api credential set",
            )
    return found


def secrets_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of `file:` references: PILOTLIGHT_SECRETS_DIR, else `secrets` of the home folder."""
    return Path(environ.get(ENV_SECRETS_DIR) or home(environ).root / "secrets")


def _from_file(name: str, environ: Mapping[str, str]) -> str:
    root = secrets_folder(environ).resolve()
    path = (root / name).resolve()  # a mounted Secret is a symlink
    if not path.is_relative_to(root):
        raise UsageError(f"file:{name} leads out of {ENV_SECRETS_DIR}")
    try:
        return path.read_text().strip()
    except OSError:
        return ""
