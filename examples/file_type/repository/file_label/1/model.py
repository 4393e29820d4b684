"""Last step of file_type: probabilities → one label, by the rules that come with magika (rules.json).

Some types need a higher probability before they are believed; below it the answer is the generic `txt` or `unknown`.
Files with fewer than eight bytes that are not whitespace tell the network too little, so it is not asked about them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

RULES = json.loads((Path(__file__).parent / "rules.json").read_text())
LABELS: list[str] = RULES["labels"]
TEXT = frozenset(RULES["text"])
BLOCK = 4096

Array = np.ndarray[Any, np.dtype[Any]]


def predict(content: Array, probabilities: Array) -> dict[str, Array]:
    """content: BYTES [batch, 1], probabilities: FP32 [batch, 214] → label: BYTES [batch, 1], score: FP32 [batch, 1]."""
    answers = [label(item, row) for item, row in zip(content.ravel(), probabilities, strict=True)]
    return {
        "label": np.array([[name.encode()] for name, _ in answers], dtype=object),
        "score": np.array([[score] for _, score in answers], dtype=np.float32),
    }


def label(content: bytes, probabilities: Array) -> tuple[str, float]:
    if len(content[:BLOCK].lstrip()) < RULES["fewest_bytes"]:
        return label_of_few(content[:BLOCK]), 1.0
    index = int(probabilities.argmax())
    score = float(probabilities[index])
    return believed(LABELS[index], score), score


def label_of_few(content: bytes) -> str:
    if not content:
        return "empty"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "unknown"
    return "txt"


def believed(name: str, score: float) -> str:
    renamed: str = RULES["renamed"].get(name, name)
    if score >= RULES["thresholds"].get(name, RULES["threshold"]):
        return renamed
    return "txt" if renamed in TEXT else "unknown"
