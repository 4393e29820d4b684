"""What text.py measures without a server: the bare prefill and step, the backend's phases, its engine.

    python bench/gpu/text_alone.py FOLDER DEVICE

Prints one line of JSON, and then the seconds of one bare prefill for each line that it reads.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter
from typing import Any

from guarded import guarded

PROMPT = 512
TOKENS = 64
TURNS = 25


def main(folder: Path, device: str) -> None:
    import torch

    from pilotlight_predictor.backends.base import Device, LoadSpec
    from pilotlight_predictor.backends.text import backend
    from pilotlight_predictor.repository.model_config import ModelConfig

    instance = backend.load(LoadSpec(ModelConfig("text", cuda_graphs=()), 1, folder, folder.parent, Device(device)))
    told: dict[str, Any] = {"torch": torch.__version__}
    with torch.inference_mode():
        once = bare_prefill(instance)
        guarded(told, "prefill_ms", lambda: middle([timed(once) for _ in range(TURNS)][5:]))
        guarded(told, "step_ms", lambda: bare_steps(instance))
        guarded(told, "step_ms by cuDNN", lambda: by_cudnn(partial(bare_steps, instance)))
        guarded(told, "prefill_ms by cuDNN", lambda: by_cudnn(lambda: middle([timed(once) for _ in range(TURNS)][5:])))
        guarded(told, "phases_ms", lambda: phases(instance))
        guarded(told, "by_graph", lambda: by_graph(instance))
        guarded(told, "prefill_ms after all", lambda: middle([timed(once) for _ in range(TURNS)][5:]))
    guarded(told, "engine_first_ms", lambda: engine_first(instance))
    print(json.dumps(told), flush=True)
    with torch.inference_mode():
        for _ in sys.stdin:
            print(timed(once), flush=True)


def by_cudnn(part: Callable[[], Any]) -> Any:
    """The backend turns cuDNN's attention off."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        return part()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(False)


def bare_prefill(instance: Any) -> Callable[[], None]:
    import torch
    from transformers import DynamicCache

    module, device = instance._model._module, instance._model.device
    ids = [instance._tokens.encode(prompt(seed)) for seed in range(TURNS)]
    assert {len(one) for one in ids} == {PROMPT}
    turns = cycle(ids)

    def once() -> None:
        cache = DynamicCache(config=module.config)
        ids = torch.tensor([next(turns)], device=device)
        out = module(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        out.logits[0, -1].argmax().item()

    return once


def bare_steps(instance: Any) -> float:
    """One token after the other with the model's own cache: what a step of one row costs."""
    import torch
    from transformers import DynamicCache

    module, device = instance._model._module, instance._model.device
    cache = DynamicCache(config=module.config)
    ids = torch.tensor([instance._tokens.encode(prompt(0))], device=device)
    token = module(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
    times = []
    for _ in range(TOKENS):
        began = perf_counter()
        token = module(input_ids=token[:, None], past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1)
        token.tolist()
        times.append(perf_counter() - began)
    return middle(times)


def phases(instance: Any) -> dict[str, float]:
    from pilotlight_predictor.backends.text.kv_cache import BatchKVCache
    from pilotlight_predictor.backends.text.sampler import Sampler, sample_all
    from pilotlight_predictor.core.generation_params import read_sampling

    model, taken = instance._model, dict[str, list[float]]()
    draw = Sampler(read_sampling({"temperature": 0}, 16, ""), 0)
    for seed in range(TURNS):
        marks = [("", perf_counter())]
        ids = instance._tokens.encode(prompt(seed))
        marks.append(("encode", perf_counter()))
        cache = model.new_cache()
        scores = model.forward([ids], [0], cache, None)
        marks.append(("forward, launched", perf_counter()))
        sample_all(scores, [draw])
        marks.append(("choose, awaited", perf_counter()))
        BatchKVCache(model.layers).add_row(cache)
        marks.append(("join", perf_counter()))
        for (_, before), (name, at) in pairwise(marks):
            taken.setdefault(name, []).append(at - before)
    return {name: middle(times[5:]) for name, times in taken.items()}


def by_graph(instance: Any) -> dict[str, Any]:
    """A prefill by a CUDA graph: how long it takes, and how far its scores are from the eager ones."""
    import torch

    model = instance._model
    ids = instance._tokens.encode(prompt(1))
    if model.prefill(ids) is None:
        model.capture_graphs()
    found: dict[str, Any] = {"captured": list(model._prefill_graphs.graphs)}
    found["prefill_ms"] = middle([timed(lambda: model.prefill(ids)[0].argmax().item()) for _ in range(TURNS)][5:])
    for length in (PROMPT, 300):
        by_graph = model.prefill(ids[:length])[0].float()
        eager = model.forward([ids[:length]], [0], model.new_cache(), None).float()
        found[f"difference at {length}"] = float((by_graph - eager).abs().max() / eager.abs().max())
        found[f"same token at {length}"] = bool(torch.equal(by_graph.argmax(-1), eager.argmax(-1)))
    return found


class Asked:
    """A request to the backend itself; `first` is the time of its first response."""

    def __init__(self, seed: int, asking: str = "", tokens: int = 4) -> None:
        import numpy as np

        from pilotlight_predictor.core.requests import InferRequest
        from pilotlight_predictor.core.tensors import Tensor

        text = Tensor("BYTES", np.array([(asking or prompt(seed)).encode()], dtype=object))
        how = {"stream": True, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        self.request = InferRequest("text", {"text_input": text}, parameters=how)
        self.cancelled = self.full = False
        self.first = 0.0
        self.ended = Event()

    def send(self, answer: Any, final: bool | None = None) -> None:
        self.first = self.first or perf_counter()
        if isinstance(answer, Exception):
            raise answer

    def complete(self) -> None:
        self.ended.set()


def engine_first(instance: Any) -> float:
    times = []
    for seed in range(TURNS):
        asked, began = Asked(seed), perf_counter()
        instance.begin([asked])
        assert asked.ended.wait(30)
        times.append(asked.first - began)
    return middle(times[5:])


def prompt(seed: int, length: int = PROMPT) -> str:
    return " ".join(f"w{3 + (seed * 131 + place * 17) % 1000}" for place in range(length))


def timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def middle(times: list[float]) -> float:
    return round(median(times) * 1e3, 3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
