"""The only place that reads pickles: plain tensors are always read, code only if its file is pinned by a hash.

A pickle can run any code when it is read. `weights_only` reads nothing but tensors; anything else is refused unless its
file name and SHA-256 are in `trusted_pickles` (`--trust-pickle FILE=SHA256`).
"""

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.errors import LoadFailed


def load(spec: LoadSpec) -> Any:
    """Read a file of torch.save: a state dict, or a whole module if the file is pinned."""
    import torch

    if spec.path.name in spec.trusted_pickles:
        with spec.path.open("rb") as file:
            _check_pinned(file, spec.path, spec.trusted_pickles)
            # Read the open file that was hashed: the name may point to another one by now.
            return torch.load(file, map_location=str(spec.device), weights_only=False)
    mmap = zipfile.is_zipfile(spec.path)
    try:
        return torch.load(spec.path, map_location=str(spec.device), weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise _refusal(spec.path, "more than tensors") from error
    except (RuntimeError, EOFError, KeyError) as error:
        raise LoadFailed(f"{spec.path.name} is damaged or no file of torch.save: {error}") from error


def load_exported(spec: LoadSpec) -> Any:
    """Read an exported program, after checking all its parts: torch.export.load falls back to plain pickle."""
    import torch

    with spec.path.open("rb") as file:
        # As above: check and read the same open file.
        _check_exported(file, spec)
        file.seek(0)
        try:
            return torch.export.load(file)
        except Exception as error:  # of many types
            raise LoadFailed(f"{spec.path.name} is no exported program that this torch can read: {error}") from error


def _check_exported(file: IO[bytes], spec: LoadSpec) -> None:
    if spec.path.name in spec.trusted_pickles:
        _check_pinned(file, spec.path, spec.trusted_pickles)
        return
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if _needs_pickle(archive, name):
                raise _refusal(spec.path, f"a pickle ({name})")


def _needs_pickle(archive: zipfile.ZipFile, name: str) -> bool:
    if name.endswith("_config.json"):
        entries = json.loads(archive.read(name)).get("config", {})
        return any(entry.get("use_pickle") for entry in entries.values())
    if name.rpartition("/")[2].startswith("opaque_obj"):
        return True
    return name.endswith(".pt") and not _tensors_only(archive.read(name))


def _tensors_only(content: bytes) -> bool:
    import torch

    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="meta")
    except Exception:
        return not content
    return True


def _check_pinned(file: IO[bytes], path: Path, trusted: Mapping[str, str]) -> None:
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    pinned = trusted[path.name].lower()
    if digest != pinned:
        raise LoadFailed(
            f"{path.name} has SHA-256 {digest}, but --trust-pickle pins {pinned}: this is not the file vouched for"
        )


def _refusal(path: Path, what: str) -> LoadFailed:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return LoadFailed(
        f"{path.name} holds {what}, which can run any code when it is read: save the weights as safetensors, or, if "
        f"you trust its author, set --trust-pickle {path.name}={digest}"
    )
