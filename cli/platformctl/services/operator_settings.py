"""Files that the API reads at each use, credentials of orgs and settings, as `platformctl api` writes them (0600)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.microservices.registry.operator_settings import FILE
from pilotlight.microservices.registry.operator_settings import settings as read_settings
from pilotlight.microservices.registry.records import check_id, check_org
from pilotlight.microservices.registry.secret_references import ENV_SECRETS_DIR, secrets_folder
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire.shared_files import replace_file

MAX_VALUE: Final = 64 * 1024  # characters of a credential


def set_credential(org: str, name: str, value: str, environ: Mapping[str, str]) -> str:
    """Store a credential of an org; return the reference by which its workspaces name it."""
    path = _credential(org, name, environ)
    if not value.strip() or len(value) > MAX_VALUE:
        raise UsageError(f"the value of {name} has {len(value.strip())} characters, must be 1 to {MAX_VALUE}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, value.strip().encode(), durable=True)
    except OSError as error:  # such as a mounted Secret
        raise PlatformError(
            f"{path} cannot be written: {error.strerror}", f"{ENV_SECRETS_DIR} names the folder"
        ) from None
    return f"file:{org}/{name}"


def delete_credential(org: str, name: str, environ: Mapping[str, str]) -> None:
    try:
        _credential(org, name, environ).unlink()
    except FileNotFoundError:
        raise NotFound(f"org {org} has no credential {name}", "platformctl api credential list") from None


def credentials(org: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return org and name of each credential, of all orgs if `org` is empty."""
    files = secrets_folder(environ).glob(f"{check_org(org) if org else '*'}/[!.]*")
    return sorted((file.parent.name, file.name) for file in files)


def _credential(org: str, name: str, environ: Mapping[str, str]) -> Path:
    return secrets_folder(environ) / check_org(org) / check_id("name", name)


def change_setting(home: Home, name: str, value: str | None) -> None:
    """Set a setting, or with None take it back. The caller has checked the value."""
    changed = {**read_settings(home), name: value}
    lines = (f"{each}={text}\n" for each, text in changed.items() if text is not None)
    replace_file(home.root / FILE, "".join(lines).encode(), durable=True)
