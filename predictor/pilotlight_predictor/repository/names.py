"""Validation of model names and of file names within a model. Pure."""

from typing import Final

MAX_NAME: Final = 255


def valid_model_name(name: str) -> bool:
    """Whether a name is a single portable path component; `...` and `model..1` are valid."""
    if name in {"", ".", ".."} or len(name.encode("utf-8", "replace")) > MAX_NAME or name != name.strip():
        return False
    return name.isprintable() and not set(name) & set("/\\")


def stays_inside(filename: str) -> bool:
    """Whether a path is relative and without `..`, so that it cannot leave the directory it is joined to."""
    if not filename or filename.startswith("/") or "\\" in filename or "\0" in filename:
        return False
    return ".." not in filename.split("/")
