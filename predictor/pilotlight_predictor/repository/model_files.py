"""Which file of a version is the model: by the GPU's compute capability, by name, or because there is only one."""

from pathlib import Path

from pilotlight_predictor.backends import TABLE, Row, row, row_for_file, row_for_folder
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.names import stays_inside


def model_file(config: ModelConfig, version_dir: Path, capability: str | None = None) -> Path:
    """The model file or directory; `capability` is the GPU's, such as "8.0", or None without one."""
    if config.cc_model_filenames:
        return _by_capability(config, version_dir, capability)
    if config.default_model_filename:
        return _given(config, version_dir, "default_model_filename", config.default_model_filename)
    if not version_dir.is_dir() or version_dir.suffix == ".savedmodel":
        return _existing(config, version_dir)
    found = _row(config)
    if found is None and row_for_folder(version_dir) is not None:
        return version_dir
    if found is not None and not found.files:
        return _only(version_dir, found) or version_dir
    for name in _default_names(found):
        if (version_dir / name).exists():
            return version_dir / name
    return _only(version_dir, found) or _refused(config, version_dir, found)


def _row(config: ModelConfig) -> Row | None:
    """The platform says more than the backend where both are given: `tensorflow` has two formats."""
    told = config.platform or config.backend
    if not told:
        return None
    found = row(config.platform) or row(config.backend)
    if found is None:
        raise LoadFailed(_unknown_backend(config.name, told))
    return found


def _unknown_backend(model: str, told: str) -> str:
    from difflib import get_close_matches

    known = [name for candidate in TABLE for name in candidate.names]
    close = get_close_matches(told, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return f"{model}: there is no backend {told!r}; {hint}"


def _default_names(found: Row | None) -> tuple[str, ...]:
    rows = TABLE if found is None else (found,)
    return tuple(dict.fromkeys(name for candidate in rows for name in candidate.files))


def _by_capability(config: ModelConfig, version_dir: Path, capability: str | None) -> Path:
    filename = config.cc_model_filenames.get(capability or "")
    if filename is not None:
        return _given(config, version_dir, f"cc_model_filenames[{capability}]", filename)
    if config.default_model_filename:
        return _given(config, version_dir, "default_model_filename", config.default_model_filename)
    here = f"this GPU has compute capability {capability}" if capability else "there is no GPU here"
    raise LoadFailed(
        f"{config.name}: cc_model_filenames has files for compute capability "
        f"{', '.join(sorted(config.cc_model_filenames))}, but {here}; add one for it, or a default_model_filename"
    )


def _given(config: ModelConfig, version_dir: Path, field: str, filename: str) -> Path:
    if not stays_inside(filename):
        raise LoadFailed(f"{config.name}: {field} = {filename!r}, must be a path inside the version's directory")
    if (version_dir / filename).exists():
        return version_dir / filename
    raise LoadFailed(
        f"{config.name}: {field} = {filename!r} is not in {version_dir}, which has {_listing(version_dir)}"
    )


def _existing(config: ModelConfig, path: Path) -> Path:
    if path.exists():
        return path
    raise LoadFailed(f"{config.name}: {path} does not exist")


def _only(version_dir: Path, found: Row | None) -> Path | None:
    """The single entry that looks like a model of this backend; of any backend when none was named."""
    entries = [entry for entry in version_dir.iterdir() if _looks_right(entry, found)]
    return entries[0] if len(entries) == 1 else None


def _looks_right(entry: Path, found: Row | None) -> bool:
    if entry.name.startswith((".", "__")) or not entry.exists():
        return False
    if found is not None and not found.files:
        return entry.is_file()
    guess = row_for_file(entry.name)
    return guess is not None and (found is None or guess.files == found.files)


def _refused(config: ModelConfig, version_dir: Path, found: Row | None) -> Path:
    raise LoadFailed(
        f"{config.name}: no model file in {version_dir}: expected {' or '.join(_default_names(found))}, "
        f"found {_listing(version_dir)}; name the file by default_model_filename if it is called otherwise"
    )


def _listing(directory: Path) -> str:
    names = sorted(e.name if e.exists() else f"{e.name} (a broken link)" for e in directory.iterdir())
    shown = ", ".join(names[:10])
    return (f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown) or "nothing"
