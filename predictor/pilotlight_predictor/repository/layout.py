"""Model repositories on disk: the models of a repository, or the one model of a path; the first stage of serving.

    <repository>/<model>/config.pbtxt       optional
    <repository>/<model>/<version>/…        a version is a number; the model file is chosen by `model_file`
    <repository>/<model>/model-settings.json    of MLServer, beside its model file: one version

Read-only: no model is opened here, and a broken model never hides its neighbours.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pilotlight.wire import model_formats
from pilotlight.wire.messages import suggestion
from pilotlight.wire.model_formats import SETTINGS_FILE, only_model, read_settings
from pilotlight_predictor.core.backend_table import (
    TABLE,
    BackendEntry,
    backend_for_file,
    backend_for_folder,
    find_backend,
)
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.repository.model_config import ModelConfig, VersionPolicy, stays_inside, valid_model_name
from pilotlight_predictor.repository.unsupported_fields import reject_unsupported

CONFIG_FILE: Final = "config.pbtxt"
MAX_VERSION: Final = 2**63 - 1


class ModelSource(Struct, frozen=True):
    """One model on disk. A `plain` source is a file or directory without versions; its version 1 is the path itself."""

    name: str
    model_dir: Path
    versions: dict[int, Path]
    config_path: Path | None
    plain: bool = False
    example: Path | bytes | None = None  # request of the warm-up, from the settings: its file, or its JSON
    adapters: Mapping[str, str] = field(default_factory=dict)  # name → folder of a LoRA adapter, from the settings


def scan(repository: Path) -> list[ModelSource]:
    """Return every model of a repository, by name; hidden names and plain files are skipped."""
    if not repository.is_dir():
        raise LoadFailed(
            f"model repository {repository} is not a directory; set --model-repository to a directory of models"
        )
    sources = []
    for entry in _directories(repository):
        if valid_model_name(entry.name):
            sources.append(_source(entry))
        else:
            message = f"ignoring {str(entry)!r}: it is not a valid model name"
            log("repository.passed_over", message, level="WARNING")
    return sources


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
    if source.config_path or _model_entries(path) or backend_for_folder(path):
        return _check_name(ModelSource(source.name, path, {1: path}, source.config_path, plain=True))
    expected = ", ".join(dict.fromkeys(name for row in TABLE for name in row.files))
    entries = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
    raise LoadFailed(f"{path} holds no model: expected one of {expected}, or a numbered version; found {entries}")


def with_named_config(source: ModelSource, name: str) -> ModelSource:
    """Return the model with its configuration of that name (`configs/NAME.pbtxt`), if it has one."""
    path = source.model_dir / "configs" / f"{name}.pbtxt"
    return replace(source, config_path=path) if name and path.is_file() else source


def check_source(source: ModelSource, override: ModelConfig | None = None) -> ModelConfig | None:
    """Return the configuration of the model, or `override` in its place, under the name of the source; None if it is to
    be derived. Raise LoadFailed for a model that cannot be served."""
    config = override or _read_config(source)
    renamed = source.plain or source.name != source.model_dir.name  # by --model-name
    if config is not None and config.name and config.name != source.name and not renamed:
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
    from pilotlight_predictor.repository.config_reader import config_from_pbtxt

    if source.config_path.name == SETTINGS_FILE:
        from pilotlight_predictor.repository.mlserver_settings import config_from_settings

        return config_from_settings(read_settings(source.model_dir), source.config_path)
    try:
        text = source.config_path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadFailed(f"{source.config_path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LoadFailed(f"{source.config_path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return config_from_pbtxt(text, str(source.config_path))


def _source(directory: Path, name: str | None = None) -> ModelSource:
    config, versions = directory / CONFIG_FILE, _versions(directory)
    if not versions and not config.is_file() and (settings := read_settings(directory)):
        from pilotlight_predictor.repository.mlserver_settings import version_of

        name = name or str(settings.get("name") or directory.name)
        return ModelSource(name, directory, {version_of(settings): directory}, directory / SETTINGS_FILE, plain=True)
    return ModelSource(name or directory.name, directory, versions, config if config.is_file() else None)


def _check_name(source: ModelSource) -> ModelSource:
    if not valid_model_name(source.name):
        raise LoadFailed(f"{source.name!r} is not a valid model name; set another with --model-name")
    return source


def _directories(parent: Path) -> list[Path]:
    """Return visible subdirectories by name; links are followed, broken ones skipped."""
    try:
        return sorted(entry for entry in parent.iterdir() if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise LoadFailed(f"{parent} cannot be read: {error.strerror}") from error


def _versions(directory: Path) -> dict[int, Path]:
    versions = {}
    for entry in _directories(directory):
        if not (entry.name.isascii() and entry.name.isdigit()):
            continue
        if str(number := int(entry.name[:20])) == entry.name and number <= MAX_VERSION:
            versions[number] = entry
        else:
            message = f"ignoring {entry}: a version is a number without leading zeros"
            log("repository.passed_over", message, level="WARNING")
    return versions


def _model_entries(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if backend_for_file(entry) is not None)


def is_repository(path: Path) -> bool:
    """Whether a path given for one model holds several, each in a directory of its own."""
    if not path.is_dir() or _is_configured(path) or backend_for_file(path) is not None:
        return False
    if model_formats.is_repository(path):  # also beside scripts
        return True
    if _versions(path) or _model_entries(path):
        return False
    return any(_is_configured(entry) or _versions(entry) for entry in _directories(path))


def _is_configured(directory: Path) -> bool:
    return (directory / CONFIG_FILE).is_file() or (directory / SETTINGS_FILE).is_file()


def model_file(config: ModelConfig, version_dir: Path, capability: str | None = None) -> Path:
    """Return the model file or directory; `capability` is that of the GPU, such as "8.0", or None without one."""
    if config.cc_model_filenames:
        return _by_capability(config, version_dir, capability)
    if config.default_model_filename:
        return _named_file(config, version_dir, "default_model_filename", config.default_model_filename)
    if not version_dir.is_dir() or version_dir.suffix == ".savedmodel":
        if not version_dir.exists():
            raise LoadFailed(f"{config.name}: {version_dir} does not exist")
        return version_dir
    backend = configured_backend(config)
    if backend is None and backend_for_folder(version_dir) is not None:
        return version_dir
    if backend is None and (module := _served_module(config, version_dir)):
        return module
    model = only_model(version_dir, code="class" in config.parameters) if backend is None else None
    if model is not None and find_backend(model.format.backend):
        return model.file
    if backend is not None and not backend.files:
        return _only(version_dir, backend) or version_dir
    for name in _default_names(backend):
        if (version_dir / name).exists():
            return version_dir / name
    if candidate := _only(version_dir, backend):
        return candidate
    raise LoadFailed(
        f"{config.name}: no model file in {version_dir}: expected {' or '.join(_default_names(backend))}, "
        f"found {_listing(version_dir)}; or set default_model_filename to the file's name"
    )


def _served_module(config: ModelConfig, version_dir: Path) -> Path | None:
    """Return the module that has the class or function of the parameter `class`; None without one, or without code."""
    if not (served := config.parameters.get("class")) or not any(version_dir.glob("*.py")):
        return None
    from pilotlight.wire.model_formats.python_code import modules_with  # no part of most starts

    modules = modules_with(version_dir, served)
    if len(modules) != 1:
        names = " and ".join(module.name for module in modules) or "no module"
        raise LoadFailed(f"{config.name}: {served} is defined in {names} of {version_dir}, must be in one")
    return modules[0]


def configured_backend(config: ModelConfig) -> BackendEntry | None:
    """Return the backend of the configuration; None if it names none. Raise LoadFailed for an unknown one."""
    # `platform` is more specific than `backend`: tensorflow has two formats.
    name = config.platform or config.backend
    if not name:
        return None
    if backend := find_backend(config.platform) or find_backend(config.backend):
        return backend
    known = [each for candidate in TABLE for each in candidate.names]
    hint = suggestion(name, known) or f"; known: {', '.join(known)}"
    raise LoadFailed(f"{config.name}: unknown backend {name!r}{hint}")


def _default_names(backend: BackendEntry | None) -> tuple[str, ...]:
    rows = TABLE if backend is None else (backend,)
    return tuple(dict.fromkeys(name for candidate in rows for name in candidate.files))


def _by_capability(config: ModelConfig, version_dir: Path, capability: str | None) -> Path:
    filename = config.cc_model_filenames.get(capability or "")
    if filename is not None:
        return _named_file(config, version_dir, f"cc_model_filenames[{capability}]", filename)
    if config.default_model_filename:
        return _named_file(config, version_dir, "default_model_filename", config.default_model_filename)
    here = f"this GPU has compute capability {capability}" if capability else "there is no GPU here"
    raise LoadFailed(
        f"{config.name}: cc_model_filenames has files for compute capability "
        f"{', '.join(sorted(config.cc_model_filenames))}, but {here}; add one for it, or a default_model_filename"
    )


def _named_file(config: ModelConfig, version_dir: Path, field: str, filename: str) -> Path:
    if not stays_inside(filename):
        raise LoadFailed(f"{config.name}: {field} = {filename!r}, must be a path inside the version's directory")
    if (version_dir / filename).exists():
        return version_dir / filename
    raise LoadFailed(
        f"{config.name}: {field} = {filename!r} is not in {version_dir}, which has {_listing(version_dir)}"
    )


def _only(version_dir: Path, backend: BackendEntry | None) -> Path | None:
    """Return the single candidate of this backend; of any backend if `backend` is None."""
    entries = [entry for entry in version_dir.iterdir() if not entry.name.startswith((".", "__")) and entry.exists()]
    if backend is not None and not backend.files:
        entries = [entry for entry in entries if entry.is_file()]
    else:
        detected = {entry: backend_for_file(entry) for entry in entries}
        entries = [entry for entry, row in detected.items() if row and (backend is None or row.files == backend.files)]
    return entries[0] if len(entries) == 1 else None


def _listing(directory: Path) -> str:
    names = sorted(e.name if e.exists() else f"{e.name} (a broken link)" for e in directory.iterdir())
    shown = ", ".join(names[:10])
    return (f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown) or "nothing"


def choose_versions(policy: VersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions to serve, newest first."""
    newest_first = sorted(set(available), reverse=True)
    if policy.kind == "latest":
        return tuple(newest_first[: policy.num_versions])
    if policy.kind == "specific":
        return tuple(version for version in newest_first if version in policy.versions)
    return tuple(newest_first)


def read_labels(model_dir: Path, config: ModelConfig) -> dict[str, list[str]]:
    """Return labels by output name, for outputs with a `label_filename`: one per line, the line number is the class."""
    labelled = [output for output in config.outputs if output.label_filename]
    return {output.name: _labels(model_dir, output.name, output.label_filename) for output in labelled}


def _labels(model_dir: Path, output: str, filename: str) -> list[str]:
    field = f"output '{output}': label_filename = {filename!r}"
    if not stays_inside(filename):
        raise LoadFailed(f"{field}, must be a path inside the model's directory")
    try:
        text = (model_dir / filename).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise LoadFailed(f"{field} cannot be read in {model_dir}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise LoadFailed(f"{field} is not UTF-8 text; save it as UTF-8") from None
    return text.removesuffix("\n").split("\n") if text else []
