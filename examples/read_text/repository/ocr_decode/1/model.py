"""Last step of read_text: probabilities per step of a line → text, by CTC: repeats fall together, blanks fall out."""

from pathlib import Path
from typing import Any

import numpy as np

BLANK = 0
CHARACTERS = ["", *(Path(__file__).parent / "characters.txt").read_text("utf-8").split("\n"), " "]
CERTAIN = 0.5  # lines read with less confidence are dropped

Array = np.ndarray[Any, np.dtype[Any]]


def predict(boxes: Array, probabilities: Array) -> dict[str, Array]:
    """boxes: INT32 [n, 4], probabilities: FP32 [n, steps, 6625] → text: BYTES, score: FP32, box: INT32, all [m, …]."""
    # Without any box the one line here is the blank stand-in of the step before, and zip leaves it out.
    read = [(*decode(line), box) for line, box in zip(probabilities, boxes, strict=False)]
    kept = [(text, score, box) for text, score, box in read if text and score >= CERTAIN]
    return {
        "text": np.array([text.encode() for text, _, _ in kept], dtype=object),
        "score": np.array([score for _, score, _ in kept], dtype=np.float32),
        "box": np.array([box for _, _, box in kept], dtype=np.int32).reshape(-1, 4),
    }


def decode(line: Array) -> tuple[str, float]:
    """The text of one line and the mean probability of its characters."""
    best = line.argmax(axis=1)
    kept = best != BLANK
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return "", 0.0
    return "".join(CHARACTERS[index] for index in best[kept]).strip(), float(line.max(axis=1)[kept].mean())
