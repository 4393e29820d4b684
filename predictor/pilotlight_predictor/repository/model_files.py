"""Choice of the model file of a version: by compute capability, by name, or as the only candidate."""

from pathlib import Path

from pilotlight_predictor.backends import TABLE, BackendEntry, backend_for_file, backend_for_folder, find_backend
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.names import stays_inside


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
    backend = _configured_backend(config)
    if backend is None and backend_for_folder(version_dir) is not None:
        return version_dir
    if backend is not None and not backend.files:
        return _only(version_dir, backend) or version_dir
    for name in _default_names(backend):
        if (version_dir / name).exists():
            return version_dir / name
    if candidate := _only(version_dir, backend):
        return candidate
    raise LoadFailed(
        f"{config.name}: no model file in {version_dir}: expected {' or '.join(_default_names(backend))}, "
        f"found {_listing(version_dir)}; name the file by default_model_filename if it is called otherwise"
    )


def _configured_backend(config: ModelConfig) -> BackendEntry | None:
    """Return the backend of the configuration; None if it names none. Raise LoadFailed for an unknown one."""
    # `platform` is more specific than `backend`: tensorflow has two formats.
    name = config.platform or config.backend
    if not name:
        return None
    if backend := find_backend(config.platform) or find_backend(config.backend):
        return backend
    from difflib import get_close_matches

    known = [each for candidate in TABLE for each in candidate.names]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    raise LoadFailed(f"{config.name}: there is no backend {name!r}; {hint}")


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
    entries = [entry for entry in version_dir.iterdir() if _is_candidate(entry, backend)]
    return entries[0] if len(entries) == 1 else None


def _is_candidate(entry: Path, backend: BackendEntry | None) -> bool:
    if entry.name.startswith((".", "__")) or not entry.exists():
        return False
    if backend is not None and not backend.files:
        return entry.is_file()
    detected = backend_for_file(entry.name)
    return detected is not None and (backend is None or detected.files == backend.files)


def _listing(directory: Path) -> str:
    names = sorted(e.name if e.exists() else f"{e.name} (a broken link)" for e in directory.iterdir())
    shown = ", ".join(names[:10])
    return (f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown) or "nothing"
