"""A real Chromium: the one on the PATH, or Debian's packages unpacked into the user's cache, which needs no root.

`apt-get -s install` names the packages that this machine lacks for it; exactly those are downloaded and unpacked beside
each other. A machine with neither skips with the reason.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from tests.judges.gomodules import Unavailable, cache_root, made_once, say

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WANTED: Final = ("chromium", "fonts-dejavu-core")
FETCH_S: Final = 900
# Nobody's pages but our own are shown, and root, whom Chromium's sandbox refuses, runs many a CI.
FLAGS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")


@dataclass(frozen=True)
class Browser:
    path: str
    env: Mapping[str, str] = field(default_factory=dict)


@cache
def chromium() -> Browser:
    """The first call on a machine without one downloads about 100 MB."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found and _starts(Browser(found)):
        return Browser(found)
    folder = cache_root().parent / "chromium"
    with made_once(folder) as filling:
        if filling is not None:
            say("fetching Debian's chromium; once")
            _unpack(filling)
    browser = _unpacked(folder)
    if not _starts(browser):
        raise Unavailable(f"{browser.path} does not start here; install chromium")
    return browser


def _unpack(folder: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("chromium is not on the PATH, and there is no apt-get to fetch it: install chromium")
    archives = folder / "archives"
    archives.mkdir()
    options = _options(folder)
    _run(["apt-get", *options, "download", *_missing(options)], archives)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(folder)], folder)
    shutil.rmtree(archives)
    shutil.rmtree(folder / "state", ignore_errors=True)


def _options(folder: Path) -> list[str]:
    """Lists of packages of our own where the machine's have been cleaned away, as they are in most images."""
    try:
        _missing(())
    except Unavailable:
        own = ["-o", f"Dir::State::lists={folder}/state/lists", "-o", f"Dir::Cache={folder}/state/cache"]
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / "state" / name).mkdir(parents=True)
        _run(["apt-get", *own, "update"], folder)
        return own
    return []


def _missing(options: Sequence[str]) -> list[str]:
    command = ["apt-get", *options, "-s", "install", "--no-install-recommends", *WANTED]
    said = _run(command, Path.home())
    return [line.split()[1] for line in said.splitlines() if line.startswith("Inst ")]


def _unpacked(folder: Path) -> Browser:
    libraries = [str(each) for each in sorted({path.parent for path in folder.glob("usr/lib/**/*.so*")})]
    env = {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "XDG_DATA_DIRS": f"{folder}/usr/share:/usr/share"}
    return Browser(str(folder / "usr/lib/chromium/chromium"), env)


def _starts(browser: Browser) -> bool:
    command = [browser.path, "--version", *FLAGS]
    try:
        done = subprocess.run(command, env={**os.environ, **browser.env}, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(command: Sequence[str], cwd: Path) -> str:
    quiet = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, cwd=cwd, env=quiet, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"chromium cannot be fetched: {error}") from error
    if done.returncode:
        raise Unavailable(f"chromium cannot be fetched: {' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout
