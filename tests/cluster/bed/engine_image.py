"""The image of the stand-in engines, under the names of the engines that the catalogue runs.

It has the programs that their containers start: `python3 -m sglang.launch_server` and `vllm serve`.
"""

import re
import shutil
from pathlib import Path
from typing import Final

from tests.cluster.bed.archive import Image
from tests.cluster.bed.places import ROOT, Places
from tests.cluster.bed.predictor_image import LOCK, project_layer
from tests.cluster.bed.python_layers import LIBRARY, digest, made, python_image, shell

NAME: Final = "dev.local/pilotlight/engines:1"
CATALOGUE: Final = ROOT / "platform/pilotlight/catalogue/ome.yaml"
ENGINES: Final = ROOT / "tests/engines"
CUDA: Final = ROOT / "tests/cuda"  # which they import
# Before the imports: the first process of a container ignores SIGTERM, and would be waited for until its grace period.
SIGTERM: Final = "import os, signal\n\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
SGLANG: Final = f"{SIGTERM}\nfrom tests.engines.sglang_engine import main\n\nmain()\n"
VLLM: Final = f"#!/usr/local/bin/python3\n{SIGTERM}\nfrom tests.engines.vllm_engine import main\n\nmain()\n"


def engine_image(places: Places) -> Image:
    files = [*sorted(ENGINES.glob("*.py")), *sorted(CUDA.glob("*.*")), Path(__file__)]
    engines = made(places, "engines", digest(files), _engines)
    own = (made(places, "shell", "env-certificates", shell), project_layer(places), engines)
    return python_image(places, NAME, LOCK, ("vllm",), own, aliases())


def aliases() -> tuple[str, ...]:
    """The images of the catalogue's engines."""
    return tuple(sorted(set(re.findall(r"image: (docker\.io/\S+)", CATALOGUE.read_text()))))


def _engines(folder: Path) -> None:
    packages = folder / LIBRARY / "site-packages"
    for source in (ENGINES, CUDA):
        shutil.copytree(source, packages / source.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "sglang").mkdir()
    (packages / "sglang/launch_server.py").write_text(SGLANG)
    program = folder / "usr/local/bin/vllm"
    program.parent.mkdir(parents=True)
    program.write_text(VLLM)
    program.chmod(0o755)
