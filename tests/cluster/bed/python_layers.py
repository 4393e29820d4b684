"""Images of Python programs, packed from this machine's interpreter and a lock file.

Two layers, each made once per content: the interpreter with its C libraries, and the locked packages; images add their
own on top. All of it is compiled, as a container whose root is read-only cannot keep bytecode.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.cluster.bed.archive import PATH, Image, Layer
from tests.cluster.bed.building import run
from tests.cluster.bed.envoy import linked_libraries, place
from tests.cluster.bed.places import ROOT, Places

ENVIRONMENT: Final = (PATH, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONSAFEPATH=1", "HOME=/tmp")
LIBRARY: Final = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}"
CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"  # without any, clients of object stores do not start
SBOM: Final = "usr/share/sbom/pilotlight.cdx.json"
# Parts of the standard library that a server never imports.
UNUSED: Final = shutil.ignore_patterns(
    "__pycache__", "*.pyc", "*.a", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
    "site-packages", "_tkinter*", "_test*.so", "config-3*",
)  # fmt: skip
FORM: Final = "2"  # count up when this module changes what is packed
_held: Final[list[int]] = []  # descriptors with a shared lock on each layer that this process uses
PYTHON_KEY: Final = hashlib.sha256(f"{FORM} {sys.version} {sys.base_prefix}".encode()).hexdigest()[:12]


def python_image(
    places: Places, name: str, lock: Path, entrypoint: tuple[str, ...], own: tuple[Layer, ...],
    aliases: tuple[str, ...] = (), env: tuple[str, ...] = (),
) -> Image:  # fmt: skip
    """Makes the layers that are not there yet. A layer's folder is named by its content, and so is the image."""
    locked = made(places, f"packages-{lock.stem}", digest([lock]), lambda folder: _packages(folder, lock))
    layers = (made(places, "interpreter", "", _interpreter), locked, *own)
    said = repr([(layer.source.name, layer.dest) for layer in layers] + [entrypoint, env])
    key = hashlib.sha256(said.encode()).hexdigest()[:12]
    return Image(name, key, layers, entrypoint, (*ENVIRONMENT, *env), "/tmp", aliases)


def made(places: Places, kind: str, key: str, make: Callable[[Path], None]) -> Layer:
    """A layer out of the cache, which stays there as long as this process lives, whatever other runs make meanwhile."""
    folder = places.cache / "layers" / f"{kind}@{key}-{PYTHON_KEY}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                filling = Path(scratch) / "layer"
                filling.mkdir()
                make(filling)
                _compile(filling)
                _remove_old(folder.parent.glob(f"{kind}@*"), Path(scratch))
                filling.rename(folder)
        os.utime(folder)
        _held.append(os.open(folder, os.O_RDONLY))
        fcntl.flock(_held[-1], fcntl.LOCK_SH)
    return Layer(folder)


def _remove_old(folders: Iterable[Path], scratch: Path) -> None:
    """Other content than the one being made; the one used last stays, for who goes back and forth between two trees."""
    for number, folder in enumerate(sorted(folders, key=lambda each: each.stat().st_mtime)[:-1]):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.rename(scratch / str(number))
        except BlockingIOError:  # a run uses it
            pass
        finally:
            os.close(descriptor)


def install(folder: Path, *words: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    target = folder / LIBRARY / "site-packages"
    run([str(uv), "pip", "install", "--quiet", f"--target={target}", f"--python={sys.executable}", *words], ROOT)
    if (target / "bin/uv").exists():
        (folder / "usr/local/bin").mkdir(parents=True, exist_ok=True)
        (target / "bin/uv").rename(folder / "usr/local/bin/uv")
    shutil.rmtree(target / "bin", ignore_errors=True)  # scripts that name an interpreter of this machine


def digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def _interpreter(folder: Path) -> None:
    """At /usr/local, where official images have it; it finds its library by where it lies itself."""
    shutil.copytree(sysconfig.get_path("stdlib"), folder / LIBRARY, symlinks=True, ignore=UNUSED)
    binary = folder / "usr/local/bin" / Path(LIBRARY).name
    binary.parent.mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), binary)
    for name in ("python", "python3"):
        (binary.parent / name).symlink_to(binary.name)
    _add_libraries(folder)
    (folder / "etc").mkdir()
    (folder / "etc/passwd").write_text("nonroot:x:65532:65532::/tmp:/sbin/nologin\n")


def shell(folder: Path) -> None:
    """What official images of Python have too: /bin/sh, for microservices are started by a line for it; env; CAs."""
    for program in ("bin/sh", "usr/bin/env"):
        (folder / program).parent.mkdir(parents=True)
        shutil.copy2(Path("/", program).resolve(), folder / program)
    (folder / CERTIFICATES).parent.mkdir(parents=True)
    shutil.copy2(Path("/", CERTIFICATES), folder / CERTIFICATES)
    _add_libraries(folder)


def _packages(folder: Path, lock: Path) -> None:
    install(folder, "--require-hashes", "--requirements", str(lock))
    _remove_gpu_libraries(folder / LIBRARY / "site-packages")
    _add_libraries(folder)
    (folder / SBOM).parent.mkdir(parents=True)
    (folder / SBOM).write_text(run([sys.executable, str(ROOT / "requirements/sbom.py"), str(lock)], ROOT))


def _remove_gpu_libraries(packages: Path) -> None:
    """What torch opens on a GPU alone, of which the bed has none: triton, and what its libraries do not link to."""
    linked = {library.resolve() for library in linked_libraries(sorted((packages / "torch/lib").glob("*.so*")))}
    for library in (packages / "nvidia").rglob("*.so*"):
        if library.resolve() not in linked:
            library.unlink()
    shutil.rmtree(packages / "triton", ignore_errors=True)


def _add_libraries(folder: Path) -> None:
    """What its binaries link to outside of it, under the paths of this machine."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    binaries = [path for path in files if ".so" in path.name or path.parent.name == "bin"]
    for library in linked_libraries(binaries):
        if not library.is_relative_to(folder):
            place(library, folder)


def _compile(folder: Path) -> None:
    """By hash and unchecked: layers carry no times that a bytecode file could be compared with."""
    words = ["-m", "compileall", "-q", "-j2", "--invalidation-mode=unchecked-hash", "-s", str(folder), "-p", "/"]
    # Some packages carry templates that are no Python; they are never imported.
    subprocess.run([sys.executable, *words, str(folder)], capture_output=True, check=False)
