"""Tokens a second of text models of Llama's shapes, of 1 and of 8 B weights, beside transformers' generate.

    PYTHONPATH=platform:predictor:. python bench/gpu/generate.py FOLDER > generate.json

FOLDER is made, and must not exist; 18 GB. `--small --device cpu` tries it anywhere. Weights are random, which moves no
rate. In each round 1, 8 and 32 requests at a time are answered by the predictor as it comes, by the predictor with CUDA
graphs, and by generate with the same prompts as one batch, in turns, each in its own process; figures are medians.
Texts in and texts out are part of all three. A part that fails says so in the JSON and the others go on.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench.text.generate import Ask, generating
from bench.text.streams import Figures, together
from guarded import guarded
from machine import machine
from text import SERVED, SMALL, server, write
from text_alone import prompt

GENERATE = "generate"
HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
ONE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True}
SHAPES = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
        **HEADS,
    },
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, **HEADS},
}
VOCABULARY = 128256
BATCHES = (1, 8, 32)
PROMPT, TOKENS = 128, 64
TEXTS = [prompt(seed, PROMPT) for seed in range(max(BATCHES))]


def main(options: argparse.Namespace) -> dict[str, Any]:
    began, told = perf_counter(), dict[str, Any]({"machine": machine(), "prompt": PROMPT, "tokens": TOKENS})
    options.folder.mkdir(parents=True)
    for name in ["small"] if options.small else SHAPES:
        if perf_counter() - began > options.budget:
            told[name] = {"failed": f"not begun within {options.budget} s"}
            continue
        guarded(told, name, partial(compared, options.folder / name, options))
        rmtree(options.folder / name, ignore_errors=True)
    told["took_s"] = round(perf_counter() - began, 1)
    return told


def compared(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    began = perf_counter()
    words = [sys.executable, __file__, str(folder), "--device", options.device, "--write"]
    subprocess.run(words, check=True, timeout=150)
    told: dict[str, Any] = {"written_s": round(perf_counter() - began, 1)}
    with contextlib.ExitStack() as open_parts:
        _, loop = open_parts.enter_context(generating(folder, options.device, 0))
        subjects: dict[str, Ask] = {}
        for name, config in SERVED.items():
            (folder / "config.pbtxt").write_text(config)
            port = open_parts.enter_context(server(folder, options.device))
            subjects[name] = partial(together, port, more={"ignore_eos": True})
        subjects[GENERATE] = loop
        for name, ask in subjects.items():  # twice, since graphs are captured after the first
            guarded(told, f"warm-up of {name}", lambda ask=ask: [ask(TEXTS[:8], 4) for _ in range(2)])
        told["loaded_s"] = round(perf_counter() - began, 1)
        taken: dict[tuple[str, int], list[Figures]] = {}
        for _ in range(options.rounds):
            for batch in BATCHES:
                for name, ask in subjects.items():
                    taken.setdefault((name, batch), []).append(ask(TEXTS[:batch], options.tokens))
    return told | summary(taken)


def summary(taken: dict[tuple[str, int], list[Figures]]) -> dict[str, Any]:
    """Medians by subject and batch, what they are of generate's, and what a batch gains over one request."""
    found: dict[str, Any] = {}
    for (name, batch), rounds in taken.items():
        medians = {key: round(median(one[key] for one in rounds), 1) for key in ("tokens_s", "first_ms")}
        found.setdefault(name, {})[str(batch)] = medians
    for each in found.values():
        for batch, medians in each.items():
            medians["times_one"] = round(medians["tokens_s"] / each["1"]["tokens_s"], 2)
            if GENERATE in found:
                medians["over_generate"] = round(medians["tokens_s"] / found[GENERATE][batch]["tokens_s"], 3)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--budget", type=float, default=150.0, help="no model begins later than that")
    parser.add_argument("--write", action="store_true", help="only write the model that FOLDER is named after")
    options = parser.parse_args()
    if options.write:
        shape = SHAPES.get(options.folder.name)
        size, dtype = (VOCABULARY, "bfloat16") if shape else (1024, "float32")
        write(options.folder, shape or SMALL, size, options.device, dtype)
    else:
        print(json.dumps(main(options), indent=1))
