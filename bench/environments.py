"""One virtual environment per peer under .bench, filled by uv from a lock file with hashes; peers share none."""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.load import BenchError

ROOT = Path(__file__).parent.parent
WORK = ROOT / ".bench"


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment that a server runs in."""

    python: Path

    @property
    def bin(self) -> Path:
        return self.python.parent

    @property
    def site_packages(self) -> Path:
        major, minor = sys.version_info[:2]
        return self.bin.parent / "lib" / f"python{major}.{minor}" / "site-packages"

    def version_of(self, distribution: str) -> str:
        code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
        done = subprocess.run([self.python, "-c", code, distribution], capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"


def own_environment() -> Environment:
    """The environment this runs in, which holds Pilotlight."""
    return Environment(Path(sys.executable))


def peer_environment(name: str) -> Environment:
    """The peer's environment; built when it is missing or its lock file has changed."""
    lock = ROOT / "requirements" / f"bench-{name}.txt"
    home = WORK / name
    stamp = home / ".lock-sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    environment = Environment(home / "bin" / "python")
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"installing {name} into .bench/{name}", file=sys.stderr)
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home))
        # Compiled, so that no start pays for it, whatever PYTHONDONTWRITEBYTECODE says.
        install = ("pip", "install", "--quiet", "--compile-bytecode", "--python", str(environment.python))
        _uv(*install, "--require-hashes", "-r", str(lock))
        stamp.write_text(digest)
    return environment


def package_folder(name: str) -> Path:
    """A folder with the packages of a lock file and none of their dependencies; filled as an environment is."""
    lock, home = ROOT / "requirements" / f"bench-{name}.txt", WORK / name
    stamp = home / ".lock-sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"installing {name} into .bench/{name}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        _uv("pip", "install", "--quiet", "--no-deps", "--target", str(home), "--require-hashes", "-r", str(lock))
        stamp.write_text(digest)
    return home


def _uv(*arguments: str) -> None:
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise BenchError("uv is not installed: run `make bench`, which brings it, or pip install uv")
    done = subprocess.run([uv, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"uv {arguments[0]} failed: {done.stderr.strip()[-400:]}")
