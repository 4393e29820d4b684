"""Model repositories on disk: the models of a repository, or the one model of a path; the first stage of serving.

    <repository>/<model>/config.pbtxt       optional
    <repository>/<model>/<version>/…        a version is a number; the model file is chosen by `model_file`

Read-only: no model is opened here, and a broken model never hides its neighbours.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pilotlight_predictor.backends import TABLE, backend_for_file
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.logs import log
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.model_files import model_file
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.repository.unserved import reject_unsupported

__all__ = ["ModelSource", "check_source", "model_file", "plain_source", "scan", "valid_model_name"]

CONFIG_FILE: Final = "config.pbtxt"
MAX_VERSION: Final = 2**63 - 1


class ModelSource(Struct, frozen=True):
    """One model on disk. A `plain` source is a file or directory without versions; its version 1 is the path itself."""

    name: str
    model_dir: Path
    versions: dict[int, Path]
    config_path: Path | None
    plain: bool = False


def scan(repository: Path) -> list[ModelSource]:
    """Return every model of a repository, by name; hidden names and plain files are skipped."""
    if not repository.is_dir():
        raise LoadFailed(
            f"model repository {repository} is not a directory; give --model-repository a directory of models"
        )
    return [_source(entry) for entry in _directories(repository) if _has_valid_name(entry)]


def plain_source(path: Path, name: str | None = None) -> ModelSource:
    """Return the model at `path`: a model file, a directory with one in it, or a model directory with versions."""
    if not path.exists():
        raise LoadFailed(f"model path {path} does not exist")
    path = path.absolute()
    if not path.is_dir() or path.suffix == ".savedmodel":
        return _check_name(ModelSource(name or path.stem, path.parent, {1: path}, None, plain=True))
    source = _source(path, name)
    if source.versions:
        return _check_name(source)
    if source.config_path or _model_entries(path):
        return _check_name(ModelSource(source.name, path, {1: path}, source.config_path, plain=True))
    expected = ", ".join(dict.fromkeys(name for row in TABLE for name in row.files))
    entries = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
    raise LoadFailed(f"{path} holds no model: expected one of {expected}, or a numbered version; found {entries}")


def check_source(source: ModelSource, override: ModelConfig | None = None) -> ModelConfig | None:
    """Return the configuration of the model, or `override` in its place, under the name of the source; None if it is to
    be derived. Raise LoadFailed for a model that cannot be served."""
    config = override or _read_config(source)
    if config is not None and config.name and config.name != source.name and not source.plain:
        raise LoadFailed(
            f"{source.config_path or source.model_dir}: name = {config.name!r}, must be {source.name!r} like the "
            "directory; rename one of them or leave name out"
        )
    if not source.versions:
        raise LoadFailed(
            f"{source.model_dir}: no version to serve; put the model file into a directory with a number for a name, "
            f"such as {source.name}/1 (an ensemble needs an empty one)"
        )
    if config is None:
        return None
    config = replace(config, name=source.name, raw={**config.raw, "name": source.name})
    reject_unsupported(config)
    return config


def _read_config(source: ModelSource) -> ModelConfig | None:
    if source.config_path is None:
        return None
    from pilotlight_predictor.repository.read_config import config_from_pbtxt

    try:
        text = source.config_path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadFailed(f"{source.config_path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LoadFailed(f"{source.config_path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return config_from_pbtxt(text, str(source.config_path))


def _source(directory: Path, name: str | None = None) -> ModelSource:
    config = directory / CONFIG_FILE
    return ModelSource(name or directory.name, directory, _versions(directory), config if config.is_file() else None)


def _check_name(source: ModelSource) -> ModelSource:
    if not valid_model_name(source.name):
        raise LoadFailed(f"{source.name!r} cannot be the name of a model; give another one with --model-name")
    return source


def _directories(parent: Path) -> list[Path]:
    """Return visible subdirectories by name; links are followed, broken ones skipped."""
    try:
        return sorted(entry for entry in parent.iterdir() if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise LoadFailed(f"{parent} cannot be read: {error.strerror}") from error


def _has_valid_name(directory: Path) -> bool:
    if valid_model_name(directory.name):
        return True
    message = f"passing over {str(directory)!r}: it cannot be the name of a model"
    log("repository.passed_over", message, level="WARNING")
    return False


def _versions(directory: Path) -> dict[int, Path]:
    versions = {}
    for entry in _directories(directory):
        if not (entry.name.isascii() and entry.name.isdigit()):
            continue
        if str(number := int(entry.name[:20])) == entry.name and number <= MAX_VERSION:
            versions[number] = entry
        else:
            message = f"passing over {entry}: write a version as a number without leading zeros"
            log("repository.passed_over", message, level="WARNING")
    return versions


def _model_entries(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if backend_for_file(entry.name) is not None)


def is_repository(path: Path) -> bool:
    """Whether a path given for one model holds several, each in a directory of its own."""
    if not path.is_dir() or (path / CONFIG_FILE).is_file() or backend_for_file(path.name) is not None:
        return False
    if _versions(path) or _model_entries(path):
        return False
    return any((entry / CONFIG_FILE).is_file() or _versions(entry) for entry in _directories(path))
