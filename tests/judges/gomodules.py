"""Fetches pinned Go modules and keeps the few files that judge our manifests: where every judge starts.

A module is downloaded into a temporary module cache that is deleted again; what is kept lies in the user's cache, so
that a second run needs neither Go nor a network. Third-party schemas never enter the repository.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# For one module on a slow network; all of them take a quarter of a minute on a good one.
FETCH_SECONDS: Final = 600
BUILD_SECONDS: Final = 1500


class Unavailable(Exception):
    """A judge cannot be had here: no Go, or no way to fetch. Tests skip with this reason."""


@dataclass(frozen=True, slots=True)
class GoModule:
    """`sum` is the hash that Go's checksum database holds: the same version is the same bytes everywhere."""

    path: str
    version: str
    sum: str
    files: tuple[str, ...]  # prefixes of the paths in the module that are kept

    def __str__(self) -> str:
        return f"{self.path}@{self.version}"


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pilotlight" / "judges"


def go() -> str:
    """The go command, or the reason why there is none."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/go/bin")
    if found is None:
        raise Unavailable("go is not on the PATH: install Go, or run once where it is and keep the cache")
    return found


def files_of(module: GoModule) -> dict[str, bytes]:
    """The wanted files by their path in the module, checked against the pinned hash."""
    with module_cache() as environment:
        archive = _download(module, environment)
        prefix = f"{module.path}@{module.version}/"
        with zipfile.ZipFile(archive) as packed:
            names = [name for name in packed.namelist() if name.removeprefix(prefix).startswith(module.files)]
            found = {name.removeprefix(prefix): packed.read(name) for name in names}
    missing = [wanted for wanted in module.files if not any(name.startswith(wanted) for name in found)]
    if missing:
        raise Unavailable(f"{module} does not hold {', '.join(missing)}: correct the pin")
    return found


@contextmanager
def module_cache() -> Iterator[Mapping[str, str]]:
    """The environment of a go command whose module cache is gone afterwards; it would grow to gigabytes."""
    with tempfile.TemporaryDirectory(prefix="judges-") as folder:
        flags = f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip()
        yield {**os.environ, "GOMODCACHE": folder, "GOFLAGS": flags, "GO111MODULE": "on"}


@contextmanager
def made_once(folder: Path) -> Iterator[Path | None]:
    """An empty folder to fill, which then becomes `folder` in one step; None when another process was first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            yield None
            return
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as parent:
            filling = Path(parent) / folder.name
            filling.mkdir()
            yield filling
            filling.rename(folder)


def program(package: str, version: str, requirements: str = "") -> str:
    """Path of a command built from a pinned Go module; the first call on a machine builds it, which takes minutes.

    `requirements`: lines of a go.mod, for a module that was published before Go had module files.
    """
    name = package.rpartition("/")[2]
    folder = cache_root() / f"{name}-{version}"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say(f"building {name} {version}; once, in some minutes")
                _build(package, version, requirements, filling, name)
    return str(folder / name)


def _build(package: str, version: str, requirements: str, folder: Path, name: str) -> None:
    with module_cache() as environment, tempfile.TemporaryDirectory() as source:
        settings = {**environment, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        # Nothing else on the machine should feel it.
        command = ["nice", "-n", "19", go(), "install", "-trimpath"]
        if requirements:
            Path(source, "go.mod").write_text(f"module {name}\n\ngo 1.23\n\nrequire (\n{requirements})\n")
        done = subprocess.run(
            [*command, *(("-mod=mod", package) if requirements else (f"{package}@{version}",))],
            env=settings, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
        )  # fmt: skip
    if done.returncode or not os.access(folder / name, os.X_OK):
        raise Unavailable(f"{name} cannot be built: {done.stderr.strip()[-300:]}")


def say(sentence: str) -> None:
    print(sentence, file=sys.__stderr__, flush=True)


def _download(module: GoModule, environment: Mapping[str, str]) -> Path:
    command = [go(), "mod", "download", "-json", str(module)]
    with tempfile.TemporaryDirectory() as outside:  # of any module whose go.mod would have a say
        done = subprocess.run(
            command, env=environment, cwd=outside, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    said = json.loads(done.stdout) if done.stdout.startswith("{") else {"Error": done.stderr.strip()}
    if "Error" in said or done.returncode:
        raise Unavailable(f"{module} cannot be fetched: {said.get('Error') or done.stderr.strip()}")
    if said["Sum"] != module.sum:
        raise AssertionError(f"{module} has the hash {said['Sum']}, pinned is {module.sum}")
    return Path(said["Zip"])
