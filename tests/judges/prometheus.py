"""The real Prometheus and its promtool: those on the PATH, or Debian's package unpacked into the user's cache.

Nothing is installed: apt-get fetches the package into a temporary folder and dpkg unpacks it, neither of which needs
root. `platformctl up --prometheus` looks into the same cache.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tests.judges.gomodules import Unavailable, cache_root, made_once, say

PROGRAMS: Final = ("prometheus", "promtool")
FETCH_SECONDS: Final = 300


@cache
def program(name: str) -> str:
    """Path of `prometheus` or `promtool`; the first call on a machine without them fetches some 20 MB."""
    found = shutil.which(name)
    if found:
        return found
    folder = cache_root().parent / "prometheus"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say("fetching Debian's prometheus; once")
                _fetch(filling)
    return str(folder / name)


def _fetch(folder: Path) -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise Unavailable(f"prometheus is not on the PATH, and there is no {tool} to fetch it with")
    with tempfile.TemporaryDirectory(prefix="judges-") as place:
        here = Path(place)
        package = _downloaded(here)
        _run(["dpkg", "-x", str(package), str(here / "unpacked")], here)
        for name in PROGRAMS:
            shutil.copy2(here / "unpacked/usr/bin" / name, folder / name)
            os.chmod(folder / name, 0o755)


def _downloaded(here: Path) -> Path:
    """By the machine's lists of packages; where it has none, by lists of our own."""
    own = [f"-oDir::State::Lists={here}/lists", f"-oDir::Cache={here}/cache", "-oAPT::Sandbox::User="]
    for folder in ("lists/partial", "cache/archives/partial"):
        (here / folder).mkdir(parents=True)
    try:
        _run(["apt-get", "download", "-qq", "-oAPT::Sandbox::User=", "prometheus"], here)
    except Unavailable:
        with suppress(Unavailable):  # one source of many that cannot be reached
            _run(["apt-get", "update", "-qq", *own], here)
        _run(["apt-get", "download", "-qq", *own, "prometheus"], here)
    return next(here.glob("prometheus_*.deb"))


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        said = done.stderr.strip()[-300:]
        raise Unavailable(f"prometheus is not on the PATH and cannot be fetched: {' '.join(command[:2])}: {said}")
