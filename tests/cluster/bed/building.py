"""`make cluster-build`: every program of the table into the cache, with ordinary `go build`.

One program at a time: KEDA's linker alone takes gigabytes. What the cache has under its key is left alone.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import BedError, Places
from tests.cluster.bed.programs import SOURCES, Program, pinned
from tests.cluster.bed.steps import Steps
from tests.judges.gomodules import Unavailable, go

KEDA: Final = "github.com/kedacore/keda/v2"
KOURIER: Final = "knative.dev/net-kourier"


def build(places: Places, programs: list[Program], steps: Steps) -> None:
    for each in programs:
        with steps.step(f"{each.name} {each.key}"):
            build_program(places, each)


def build_program(places: Places, program: Program) -> None:
    """Built beside its place and moved there in one step, so that a half-made one is never taken for whole."""
    product = program.product(places)
    product.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=product.parent.parent) as scratch:
        work, out = Path(scratch) / "src", Path(scratch) / "out"
        shutil.copytree(SOURCES / program.source, work)
        if prepare := PREPARATIONS.get(program.source):
            prepare(work)
        out.mkdir()
        _go(
            work, "build", "-p=2", "-trimpath", "-buildvcs=false", f"-tags={program.tags}",
            f"-ldflags=-s -w {program.flags}", f"-o={out / program.name}", program.package,
        )  # fmt: skip
        shutil.rmtree(product.parent, ignore_errors=True)
        out.rename(product.parent)


def module_folder(module: str, version: str) -> Path:
    """Where Go keeps the module's files, downloaded and checked against Go's checksum database."""
    with tempfile.TemporaryDirectory() as outside:  # of any module whose go.mod would have a say
        said = json.loads(_go(Path(outside), "mod", "download", "-json", f"{module}@{version}"))
    return Path(said["Dir"])


def _patch_kourier(work: Path) -> None:
    """Kourier's last module predates Envoy's demand that every filter carry a typed configuration."""
    copy = work / "net-kourier"
    shutil.copytree(module_folder(KOURIER, pinned("kourier", KOURIER)), copy, ignore=shutil.ignore_patterns("vendor"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    run(["patch", "--silent", "-p1", f"--input={work / 'router.patch'}"], copy)


def _merge_keda(work: Path) -> None:
    """KEDA's three programs share most of their size: each becomes a package of one program."""
    source = module_folder(KEDA, pinned("keda", KEDA)) / "cmd"
    for name in ("operator", "adapter", "webhooks"):
        text = (source / name / "main.go").read_text()
        text = re.sub(r"^package main$", f"package {name}", text, flags=re.MULTILINE)
        (work / name).mkdir()
        (work / name / "main.go").write_text(re.sub(r"^func main\(\)", "func Main()", text, flags=re.MULTILINE))


PREPARATIONS: Final[dict[str, Callable[[Path], None]]] = {"kourier": _patch_kourier, "keda": _merge_keda}


def _go(folder: Path, *words: str) -> str:
    try:
        return run(["nice", "-n", "10", "env", "CGO_ENABLED=0", go(), *words], folder)
    except Unavailable as reason:
        raise BedError(str(reason)) from None


def run(command: list[str], folder: Path) -> str:
    if shutil.which(command[0]) is None:
        raise BedError(f"{command[0]} is missing from this machine: install it, and run this again")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
