"""The one door for pickles: plain tensors always pass, code only by the hash that an operator vouched for.

A pickle can run any code when it is read. `weights_only` reads tensors and nothing else; whatever needs more is refused
unless its file name and SHA-256 are among `trusted_pickles` (`--trust-pickle FILE=SHA256`).
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
    """What torch.save wrote: a state dict, or a whole module if its file is pinned."""
    import torch

    if spec.path.name in spec.trusted_pickles:
        with spec.path.open("rb") as file:
            _check_pinned(file, spec.path, spec.trusted_pickles)
            # The open file that was hashed is the one that is read, whatever the name points to meanwhile.
            return torch.load(file, map_location=str(spec.device), weights_only=False)
    mmap = zipfile.is_zipfile(spec.path)
    try:
        return torch.load(spec.path, map_location=str(spec.device), weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise _refused(spec.path, "more than tensors") from error
    except (RuntimeError, EOFError, KeyError) as error:
        raise LoadFailed(f"{spec.path.name} is damaged or no file of torch.save: {error}") from error


def load_exported(spec: LoadSpec) -> Any:
    """An exported program. torch.export.load falls back to plain pickle: so every part of it is looked at first."""
    import torch

    with spec.path.open("rb") as file:
        # As above: what was looked at is what is read.
        _check_exported(file, spec)
        file.seek(0)
        try:
            return torch.export.load(file)
        except Exception as error:  # one of many kinds, all of which mean the same to the operator
            raise LoadFailed(f"{spec.path.name} is no exported program that this torch can read: {error}") from error


def _check_exported(file: IO[bytes], spec: LoadSpec) -> None:
    if spec.path.name in spec.trusted_pickles:
        _check_pinned(file, spec.path, spec.trusted_pickles)
        return
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if _needs_pickle(archive, name):
                raise _refused(spec.path, f"a pickle ({name})")


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
    found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    pinned = trusted[path.name].lower()
    if found != pinned:
        raise LoadFailed(
            f"{path.name} has SHA-256 {found}, but --trust-pickle pins {pinned}: this is not the file vouched for"
        )


def _refused(path: Path, what: str) -> LoadFailed:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return LoadFailed(
        f"{path.name} holds {what}, which can run any code when it is read: save the weights as safetensors, or, if "
        f"you trust its author, set --trust-pickle {path.name}={found}"
    )
