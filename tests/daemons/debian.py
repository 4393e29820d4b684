"""Debian's packages without installing them: fetched by apt, unpacked into a cache folder, and used from there.

Nothing of this machine changes: not what is installed, nothing below /etc or /var. What a package needs and this
machine has not comes with it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.daemons.availability import Unavailable

LIBRARIES = "usr/lib/x86_64-linux-gnu"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = f"deb [signed-by={KEYS}] http://deb.debian.org/debian {{}} main\n"


def unpacked(*packages: str, suite: str = "") -> Path:
    """The folder that holds them; from the second time on nothing is asked of the network.

    Of another suite than this machine's it holds all that they need, the C library too (`loader`).
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"needs {program}, as Debian has it")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pilotlight" / "debian"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = _suite(cache / f"apt-{suite}", suite) if suite else _lists(cache, packages)
        wanted = _missing(packages, options)
        folder = cache / hashlib.sha256(" ".join((*packages, *wanted)).encode()).hexdigest()[:16]
        if not folder.exists():
            _fill(folder, wanted, options)
    return folder


def environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """In which programs of the folder find each other and their libraries."""
    programs = ":".join(str(folder / name) for name in ("usr/bin", "usr/sbin", "bin", "sbin"))
    places = (LIBRARIES, LIBRARIES.removeprefix("usr/"), f"{LIBRARIES}/slurm-wlm")
    libraries = ":".join(str(folder / place) for place in places if (folder / place).is_dir())
    return {**base, "PATH": f"{programs}:{base['PATH']}:/usr/sbin:/sbin", "LD_LIBRARY_PATH": libraries}


def loader(folder: Path, program: str, *libraries: str) -> str:
    """The command line of a program of another suite, by that suite's dynamic loader."""
    places = [folder / LIBRARIES, *(folder / LIBRARIES / name for name in libraries)]
    found = ":".join(map(str, places))
    return f"{folder / LIBRARIES}/ld-linux-x86-64.so.2 --library-path {found} {folder}/usr/bin/{program}"


def _suite(state: Path, suite: str) -> list[str]:
    """Lists of a suite, fetched once; nothing counts as installed."""
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "sources.list").write_text(SOURCE.format(suite))
    (state / "status").touch()
    options = [
        f"-oDir::Etc::sourcelist={state}/sources.list", "-oDir::Etc::sourceparts=-", f"-oDir::State={state}",
        f"-oDir::State::status={state}/status", f"-oDir::Cache={state}/cache", "-oAPT::Sandbox::User=root",
        "-oAcquire::Languages=none",
    ]  # fmt: skip
    if not any(state.glob("lists/*_Packages*")):
        _apt([*options, "update"])
    return options


def _lists(cache: Path, packages: tuple[str, ...]) -> list[str]:
    """This machine's lists of packages where it has some, else fresh ones in the cache."""
    if not subprocess.run(["apt-cache", "show", *packages], capture_output=True).returncode:
        return []
    state = cache / "apt"
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    options = [f"-oDir::State::lists={state / 'lists'}", f"-oDir::Cache={state / 'cache'}"]
    _apt([*options, "update"])
    return options


def _missing(packages: tuple[str, ...], options: list[str]) -> list[str]:
    """NAME=VERSION of each that this machine has not, in a fixed order."""
    said = _apt([*options, "install", "--simulate", "--no-install-recommends", *packages])
    return sorted(f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", said, re.M))


def _fill(folder: Path, wanted: list[str], options: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        os.chmod(scratch, 0o755)  # apt drops its rights to fetch
        archives, root = Path(scratch) / "archives", Path(scratch) / "root"
        archives.mkdir()
        root.mkdir()
        if wanted:
            _apt([*options, "-oAPT::Sandbox::User=root", "download", *wanted], archives)
        for archive in archives.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", archive, root], check=True)
        root.rename(folder)


def _apt(words: list[str], folder: Path | None = None) -> str:
    environ = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Unavailable(f"apt-get {words[-1]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout
