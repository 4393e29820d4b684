"""Where the time of a step goes: the bare module, a CUDA graph of it, the engine without a server, both ways.

    PYTHONPATH=platform:predictor:. python bench/gpu/steps.py FOLDER > steps.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere, without graphs.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generate import BATCHES, PROMPT, SHAPES, TEXTS, VOCABULARY
from guarded import guarded
from machine import machine
from text import SMALL, write
from text_alone import Asked, middle, timed

TURNS = 30
TOKENS = 64


def main(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from pilotlight_predictor.backends.base import Device, LoadSpec
    from pilotlight_predictor.backends.text import backend
    from pilotlight_predictor.repository.model_config import ModelConfig

    told: dict[str, Any] = {"machine": machine(), "prompt": PROMPT}
    small = (SMALL, 1024, options.device, "float32")
    write(options.folder, *(small if options.small else (SHAPES["1B"], VOCABULARY, options.device, "bfloat16")))
    config = ModelConfig("text", cuda_graphs=() if options.device == "cuda" else None)
    instance = backend.load(LoadSpec(config, 1, options.folder, options.folder.parent, Device(options.device)))
    for rows in BATCHES:
        with torch.inference_mode():
            guarded(told, f"{rows} rows, alone", lambda rows=rows: alone(instance, rows))
        guarded(told, f"{rows} rows, engine", lambda rows=rows: engine(instance, rows))
    graphs, instance.engine._step_graphs = instance.engine._step_graphs, None
    for rows in BATCHES if graphs is not None else ():
        guarded(told, f"{rows} rows, engine without graphs", lambda rows=rows: engine(instance, rows))
    return told


def alone(instance: Any, rows: int) -> dict[str, Any]:
    """One step of rows of different length, again and again at the same column: eager, and by a graph."""
    from pilotlight_predictor.backends.text.kv_cache import BatchKVCache

    model = instance._model
    batch = BatchKVCache(model.layers, (rows, 256) if model.uses_graphs else None)
    for row, text in enumerate(TEXTS[:rows]):
        cache = model.new_cache()
        model.forward([instance._tokens.encode(text)[: PROMPT - row]], [0], cache, None)
        batch.add_row(cache)
    batch.before_step()
    tokens, lengths = [5 + row for row in range(rows)], list(batch.lengths)

    def eager() -> Any:
        return model.forward([[token] for token in tokens], lengths, batch.cache, batch.mask(model.device))

    found: dict[str, Any] = {"eager_ms": steps(eager)}
    if (graphs := model.step_graphs(batch)) is None:
        return found
    expected = eager().float()
    scores = graphs.run(tokens)
    if scores is None:
        return found | {"graph": "cannot be captured"}
    found["difference"] = float((scores.float() - expected).abs().max() / expected.abs().max())
    found["same_tokens"] = int((scores.argmax(-1) == expected.argmax(-1)).sum())
    return found | {"graph_ms": steps(lambda: graphs.run(tokens))}


def steps(step: Callable[[], Any]) -> float:
    return middle([timed(lambda: step().argmax(-1).tolist()) for _ in range(TURNS)][5:])


def engine(instance: Any, rows: int) -> dict[str, float]:
    """Tokens a second of so many requests to the backend itself; the second time counts."""
    for _ in range(2):
        requests = [Asked(seed, TEXTS[seed], TOKENS) for seed in range(rows)]
        began = perf_counter()
        instance.begin(requests)
        for each in requests:
            assert each.ended.wait(100)
        took = perf_counter() - began
    return {"tokens_s": round(rows * TOKENS / took, 1), "first_ms": middle([each.first - began for each in requests])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    print(json.dumps(main(parser.parse_args()), indent=1))
