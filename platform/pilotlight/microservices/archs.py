"""Network architectures, read from their config files. First step of a start.

`{network_arch}.config.json` has the image key, whether the model is a folder, the container command and the secrets it
may need. The package's own are in reference/archs; a folder in PILOTLIGHT_ARCHS extends and overrides them, also with
a versions.yaml and a service.json.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pilotlight.errors import UsageError

ENV_FOLDER: Final = "PILOTLIGHT_ARCHS"
OWN: Final = Path(__file__).parent / "reference"
DEFAULT_IMAGE_KEY: Final = "COSMOS_RL"  # if the config file is missing or names none
SUFFIX: Final = ".config.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Arch(Struct, frozen=True):
    name: str
    image_key: str = DEFAULT_IMAGE_KEY
    command: str = ""  # a row of inner_command.COMMANDS
    folder: bool = False  # its model is a directory
    secrets: tuple[str, ...] = ()  # names of variables that are passed if set


def arch(name: str, environ: Mapping[str, str]) -> Arch:
    """Return the architecture, with the default image if it has no config file. The command is checked later."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"network_arch = {name!r}, must be letters, digits, dots, dashes and underscores")
    document = _document(name, environ)
    parameters = document.get("api_params") or {}
    inference = (document.get("spec_params") or {}).get("inference") or {}
    return Arch(
        name=name,
        image_key=str(parameters.get("image") or DEFAULT_IMAGE_KEY),
        command=str(document.get("container_command") or name),
        folder="folder" in str(inference.get("model_path") or ""),
        secrets=tuple(map(str, document.get("secrets") or ())),
    )


def names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all architectures with a config file."""
    known = {path.name.removesuffix(SUFFIX) for folder in _folders(environ) for path in folder.glob(f"*{SUFFIX}")}
    return sorted(known)


def reference(file: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return service.json or versions.yaml of the package, merged with the user's own."""
    merged: dict[str, Any] = {}
    for folder in (OWN, *_own_folder(environ)):
        if (folder / file).is_file():
            merged = _merge(merged, _read(folder / file))
    return merged


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield folders of config files, the user's first."""
    yield from _own_folder(environ)
    yield OWN / "archs"


def _own_folder(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get(ENV_FOLDER, "")
    if named and not Path(named).is_dir():
        raise UsageError(f"{ENV_FOLDER} = {named}, must be a folder with files called NETWORK_ARCH{SUFFIX}")
    return [Path(named)] if named else []


def _document(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    for folder in _folders(environ):
        if (path := folder / f"{name}{SUFFIX}").is_file():
            return _read(path)
    return {}


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".yaml":
            import yaml

            document = yaml.safe_load(path.read_text())
        else:
            document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: must hold an object")
    return document


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merge(below[key], value) if both else value
    return merged
