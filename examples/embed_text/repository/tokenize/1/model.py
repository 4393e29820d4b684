"""First step of embed_text: sentences → token ids, with the tokenizer.json that came with the weights."""

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

LONGEST = 256  # the length the model was trained with; what lies beyond is cut off
TOKENIZER = Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))
TOKENIZER.enable_truncation(LONGEST)
TOKENIZER.enable_padding()  # to the longest of the batch, not to a fixed length

Array = np.ndarray[Any, np.dtype[Any]]


def predict(text: Array) -> dict[str, Array]:
    """text: BYTES [batch, 1] → input_ids and attention_mask: INT64 [batch, tokens]; prompt_tokens: INT64 [batch, 1]."""
    encoded = TOKENIZER.encode_batch([item.decode(errors="replace") for item in text.ravel()])
    mask = np.array([item.attention_mask for item in encoded], dtype=np.int64)  # 0 for padding
    return {
        "input_ids": np.array([item.ids for item in encoded], dtype=np.int64),
        "attention_mask": mask,
        "prompt_tokens": mask.sum(1, keepdims=True),
    }
