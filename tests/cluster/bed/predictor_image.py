"""The predictor's image for the bed: what Containerfile makes elsewhere, packed from this machine's Python.

On top of interpreter and locked packages lie the project itself, as its wheel has it, and models for the tests.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.bed.archive import Image, Layer
from tests.cluster.bed.building import run
from tests.cluster.bed.places import ROOT, Places
from tests.cluster.bed.python_layers import digest, install, made, python_image, shell

NAME: Final = "dev.local/pilotlight/predictor:0.1.0"
ALIAS: Final = "docker.io/pilotlight/predictor:0.1.0"  # what platformctl renders by default, spelt out
FRAMEWORKS: Final = ("sklearn", "torch")  # variants with libraries beside onnxruntime
LOCK: Final = ROOT / "requirements" / "image-cpu.txt"
PLATFORM: Final = "dev.local/pilotlight/platform:0.1.0"
PLATFORM_LOCK: Final = ROOT / "requirements" / "image-platform.txt"
ENTRYPOINT: Final = ("env", "--block-signal=TERM", "python", "-m", "pilotlight_predictor")
SOURCES: Final = ("platform", "predictor", "cli", "knative", "keda", "helm")


def predictor_image(places: Places) -> Image:
    models = made(places, "models", digest(_models()), _model_files)
    own = (made(places, "shell", "env-certificates", shell), project_layer(places), models)
    return python_image(places, NAME, LOCK, ENTRYPOINT, own, (ALIAS,))


def framework_image(places: Places, variant: str) -> Image:
    """A variant for models of a framework; hundreds of megabytes, so that only its own tests import it."""
    own = (made(places, "shell", "env-certificates", shell), project_layer(places))
    lock = LOCK.with_name(f"image-{variant}.txt")
    return python_image(places, f"{NAME}-{variant}", lock, ENTRYPOINT, own, (f"{ALIAS}-{variant}",))


def platform_image(places: Places) -> Image:
    """The control plane's own: no runtime and no models, but what speaks to a cluster."""
    own = (made(places, "shell", "env-certificates", shell), project_layer(places))
    return python_image(places, PLATFORM, PLATFORM_LOCK, ENTRYPOINT, own)


def project_layer(places: Places) -> Layer:
    return made(places, "project", digest(_project_files()), _project)


def _project(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run([sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={scratch}"], ROOT)
        install(folder, "--no-deps", str(next(Path(scratch).glob("*.whl"))))


def _project_files() -> list[Path]:
    files = [path for each in SOURCES for path in (ROOT / each).rglob("*") if path.is_file()]
    return [ROOT / "pyproject.toml", *sorted(path for path in files if "__pycache__" not in path.parts)]


def _model_files(folder: Path) -> None:
    """/models/iris/model.onnx and its like."""
    for path in _models():
        target = folder / "models" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _models() -> list[Path]:
    return sorted(ROOT.glob("examples/*/model.onnx"))
