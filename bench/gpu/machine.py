"""What a result of bench/gpu was measured on and with."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def machine() -> dict[str, str]:
    """Return the GPU and its driver (or the CPU alone), cores, versions, and the moment."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        gpu = "none"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "gpu": gpu, "cores": str(os.cpu_count()),
        "kernel": platform.release(), "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
