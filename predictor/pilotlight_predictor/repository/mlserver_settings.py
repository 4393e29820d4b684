"""MLServer's model-settings.json as the configuration of a model: its runtime, its file and its parameters."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pilotlight.wire.model_formats import FORMATS, mlserver_format
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.config_reader import config_from_json
from pilotlight_predictor.repository.model_config import ModelConfig, stays_inside


def version_of(settings: Mapping[str, Any]) -> int:
    """Return the version if it is a number, as ours are; 1 for any other, such as v0.1.0."""
    version = str(_parameters(settings).get("version", ""))
    return int(version) if version.isascii() and version.isdecimal() else 1


def config_from_settings(settings: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the configuration. Raise LoadFailed with the field that cannot be served."""
    row = mlserver_format(settings)
    if row is None:
        known = ", ".join(sorted({row.name for row in FORMATS if row.backend}))
        raise LoadFailed(
            f"{path}: implementation = {settings.get('implementation')!r}, must be a runtime of MLServer for one of"
            f" {known}; serve a class of your own by a model.py (docs/reference/backends.md#python)"
        )
    parameters = _parameters(settings)
    document: dict[str, Any] = {"backend": row.backend}
    uri = str(parameters.get("uri") or "")
    if "://" in uri or not stays_inside(uri or "model"):
        raise LoadFailed(f"{path}: parameters.uri = {uri!r}, must be a path below its own folder")
    if str(PurePosixPath(uri)) != ".":
        document["default_model_filename"] = str(PurePosixPath(uri))
    extra = parameters.get("extra") or {}
    document["parameters"] = {key: {"string_value": str(value)} for key, value in extra.items() if value is not None}
    return config_from_json(document, str(path))


def _parameters(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = settings.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
