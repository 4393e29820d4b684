"""First step of file_type: the bytes of a file → the 2048 integers that magika was trained on.

At most 4096 bytes from each end are looked at; whitespace at the outer edges is dropped; 1024 are kept from the
beginning and 1024 from the end, and where there are too few, the number 256 (no byte) fills the inner side.
"""

from typing import Any

import numpy as np

BLOCK = 4096
KEPT = 1024
PADDING = 256

Array = np.ndarray[Any, np.dtype[Any]]


def predict(content: Array) -> dict[str, Array]:
    """content: BYTES [batch, 1] → bytes: INT32 [batch, 2048]."""
    return {"bytes": np.stack([features(item) for item in content.ravel()])}


def features(content: bytes) -> Array:
    row = np.full(2 * KEPT, PADDING, dtype=np.int32)
    beginning = content[:BLOCK].lstrip()[:KEPT]
    end = content[-BLOCK:].rstrip()[-KEPT:]
    row[: len(beginning)] = np.frombuffer(beginning, dtype=np.uint8)
    row[2 * KEPT - len(end) :] = np.frombuffer(end, dtype=np.uint8)
    return row
