"""Writes a text classifier of random weights by this environment's transformers, or times a plain loop over it.

    python huggingface_models.py write FOLDER HIDDEN LAYERS HEADS TEXT     prints label and score of the text
    python huggingface_models.py loop FOLDER TEXT ROWS SECONDS             prints texts a second

Written by the older transformers of the peer, so that both sides can read it.
"""
# mypy: ignore-errors

import json
import sys
import time

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

VOCABULARY = 30522  # BERT's
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(folder, hidden, layers, heads, text):
    torch.manual_seed(7)
    words = [*SPECIAL, *dict.fromkeys(text.split()), *(f"w{number}" for number in range(VOCABULARY))][:VOCABULARY]
    plain = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    plain.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, model_max_length=512, model_input_names=["input_ids", "attention_mask"], **names
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=int(hidden), num_hidden_layers=int(layers), num_attention_heads=int(heads),
        intermediate_size=4 * int(hidden), id2label={0: "negative", 1: "neutral", 2: "positive"}, initializer_range=0.1,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    print(json.dumps(transformers.pipeline("text-classification", model=folder, device="cpu")(text)[0]))


def loop(folder, text, rows, seconds):
    """Tokenizer, forward and labels, as a program without a server has them."""
    torch.set_num_threads(1)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    turns, began = -3, time.perf_counter()
    with torch.inference_mode():
        while turns < 1 or time.perf_counter() < began + float(seconds):
            began = time.perf_counter() if turns == 0 else began
            scores = model(**words([text] * int(rows), return_tensors="pt")).logits.softmax(-1)
            [model.config.id2label[best] for best in scores.argmax(-1).tolist()]
            turns += 1
    print(turns * int(rows) / (time.perf_counter() - began))


{"write": write, "loop": loop}[sys.argv[1]](*sys.argv[2:])
