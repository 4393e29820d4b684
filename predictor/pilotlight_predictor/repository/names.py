"""Which names of models and of files within a model are accepted. Pure."""

from typing import Final

MAX_NAME: Final = 255


def valid_model_name(name: str) -> bool:
    """One component of a path that reads the same everywhere; `...` and `model..1` are fine."""
    if name in {"", ".", ".."} or len(name.encode("utf-8", "replace")) > MAX_NAME or name != name.strip():
        return False
    return name.isprintable() and not set(name) & set("/\\")


def stays_inside(filename: str) -> bool:
    """A relative path without `..`, so that joining it to a model's directory cannot leave that directory."""
    if not filename or filename.startswith("/") or "\\" in filename or "\0" in filename:
        return False
    return ".." not in filename.split("/")
