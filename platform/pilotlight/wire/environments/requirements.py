"""Requirements of a Python model: `requirements.txt`, or `uv.lock` with `pyproject.toml`, where its code is.

Names, versions, markers and hashes, and nothing else: packages come as wheels from the operator's indexes, so no line
of a model makes the installation run code, read a file or open a connection of its choice.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.wire.model_formats import PICKLE_SUFFIXES

FILE, LOCK, PROJECT = "requirements.txt", "uv.lock", "pyproject.toml"
FILES: Final = (FILE, LOCK, PROJECT)
CODE: Final = "model.py"
# Files that a model.py beside them has the classes of.
WITH_CODE: Final = (".pt", ".pth", ".ckpt", ".safetensors", *PICKLE_SUFFIXES)
MAX_BYTES: Final = 4 << 20
INDEX: Final = ("packages come from the operator's indexes", "remove the line; UV_DEFAULT_INDEX and UV_INDEX name them")
WHEELS: Final = ("only wheels are installed", "remove the line; build a wheel and add its folder to UV_FIND_LINKS")
NAMED: Final = ("paths and URLs are not installed", "name a package, or put the module into the model's folder")
UNKNOWN: Final = ("this option is unknown", "remove the line")
FLAT: Final = ("other files are not read", f"write its lines into {FILE}")
# Reason and fix by option.
REFUSED: Final = {
    "-r": FLAT, "--requirement": FLAT, "-c": FLAT, "--constraint": FLAT, "-e": NAMED, "--editable": NAMED,
    "-i": INDEX, "--index-url": INDEX, "--extra-index-url": INDEX, "--no-index": INDEX, "-f": INDEX,
    "--find-links": INDEX, "--trusted-host": INDEX, "--no-binary": WHEELS,
}  # fmt: skip
IGNORED: Final = ("--only-binary", "--prefer-binary", "--require-hashes")  # hashes that are given are checked anyway
ARCHIVES: Final = (".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz")
_NAME: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_REQUIREMENT: Final = (
    rf"({_NAME})\s*(?:\[[\w.,\s-]*\])?\s*(?:\(?[<>=!~][\w\s.,<>=!~*+-]*\)?)?\s*(?:;[\w\s.,<>=!~*+\"'()-]*?)?"
    r"(?:\s+--hash[=\s]\w+:[0-9a-f]+)*"
)


class RequirementsRefused(Exception):
    """Requirements that are not installed; `hint` is the fix."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Requirements(NamedTuple):
    """What a model requires. `lines` are those of a requirements.txt; of a lock file uv exports them.

    `files`: the content that `digest` is of; those of the folder may be others by now.
    """

    folder: str
    name: str
    digest: str
    lines: tuple[str, ...]
    files: Mapping[str, bytes]

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)


def find(model: str, *, links: bool = True) -> Requirements | None:
    """Return the requirements of a model: a .py file, its folder, weights or a pickle beside it, or Triton's layout.

    Raise RequirementsRefused for what is not installed, and for models of one folder that differ in them. `links` are
    followed, else refused: a refusal shows a line of the file.
    """
    found = {each.digest: each for each in (_read(path, links) for path in _locate(model, links))}
    if len(found) > 1:
        paths = " and ".join(sorted(each.path for each in found.values())[:2])
        raise RequirementsRefused(f"{paths} differ, and one server has one environment", "deploy each separately")
    return next(iter(found.values()), None)


def _locate(model: str, links: bool) -> Iterator[str]:
    """Yield the files with requirements, each in the folder of the code, or above its version's."""
    if os.path.basename(model) in (FILE, LOCK) and os.path.isfile(model):
        yield model
    for folder in _code_folders(model, links):
        above = [os.path.dirname(folder)] if _is_version(folder) else []
        for name in (FILE, LOCK):
            path = next((path for each in (folder, *above) if os.path.isfile(path := os.path.join(each, name))), "")
            if path:
                yield path
                break


def _code_folders(model: str, links: bool) -> Iterator[str]:
    if os.path.isfile(model):
        folder = os.path.dirname(os.path.abspath(model))
        if model.endswith(".py") or (model.endswith(WITH_CODE) and os.path.isfile(os.path.join(folder, CODE))):
            yield folder
    elif os.path.isfile(os.path.join(model, CODE)) or _serves_code(model):
        yield model
    else:
        below = _folders(model, links)
        versions = (folder for each in below for folder in _folders(each, links) if _is_version(folder))
        for folder in (*below, *versions):
            if os.path.isfile(os.path.join(folder, CODE)):
                yield folder


def _serves_code(folder: str) -> bool:
    """Whether a folder has requirements and a module of another name that can be served."""
    if not any(os.path.isfile(os.path.join(folder, name)) for name in (FILE, LOCK)):
        return False
    from pilotlight.wire.model_formats.python_code import has_served_module  # no part of most starts

    return has_served_module(Path(folder))


def _folders(path: str, links: bool) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=links))
    except OSError:  # the load reports it
        return []


def _is_version(path: str) -> bool:
    return os.path.basename(path).isdecimal()


def _read(path: str, links: bool) -> Requirements:
    import hashlib

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags if links else flags | os.O_NOFOLLOW)

    folder, name = os.path.split(path)
    names = (LOCK, PROJECT) if name == LOCK else (FILE,)
    digest, files = hashlib.sha256(), {}
    for each in names:
        try:
            with open(os.path.join(folder, each), "rb", opener=opened) as file:
                files[each] = text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise RequirementsRefused(f"{os.path.join(folder, each)} cannot be read: {error.strerror}") from None
        if len(text) > MAX_BYTES:
            raise RequirementsRefused(f"{os.path.join(folder, each)} has more than {MAX_BYTES:,} bytes")
        digest.update(each.encode() + b"\0" + text + b"\0")
    return Requirements(folder, name, digest.hexdigest(), judge(text, path) if name == FILE else (), files)


def judge(content: bytes, path: str) -> tuple[str, ...]:
    """Return the requirements of a file, one in each line. Raise RequirementsRefused with file, line and fix."""
    import re

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequirementsRefused(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    requirements = []
    for number, line in _logical_lines(text):
        matched, (reason, fix) = re.fullmatch(_REQUIREMENT, line, re.ASCII), NAMED
        if line.startswith("-"):
            option = re.split(r"[\s=]", line, maxsplit=1)[0]
            if option in IGNORED:
                continue
            reason, fix = REFUSED.get(option) or REFUSED.get(option[:2], UNKNOWN)
        if matched is None or matched[1].lower().endswith(ARCHIVES):
            raise RequirementsRefused(f"{path}, line {number}: {line[:100]}: {reason}", fix)
        requirements.append(line)
    return tuple(requirements)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, without comments; a backslash at its end continues it.

    White space becomes one space: the pattern of a requirement would try each way to divide a long run of it.
    """
    whole, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        first = first or number
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        whole = " ".join(f" {whole}{line}".partition(" #")[0].split())
        if whole:
            yield first, whole
        whole, first = "", 0
