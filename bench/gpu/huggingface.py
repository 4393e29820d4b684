"""Hugging Face tasks on a GPU: whether answers are those of the CPU, and requests a second beside a bare loop.

    PYTHONPATH=platform:predictor:. python bench/gpu/huggingface.py FOLDER > huggingface.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere. Each task answers for a small model of
random weights by both devices. A classifier and an embedding of BERT-base's shape are then asked over HTTP, one text in
each of 32 connections, beside a loop over the same module (tokenizer, forward, answers back) with one text and with 32
at a time. A part that fails says so in the JSON and the others go on.
"""

import argparse
import io
import json
import subprocess
import sys
import wave
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from guarded import guarded
from load_client import Clients
from machine import machine
from tests.predictor.backends.huggingface import tiny_tasks as tiny
from text import server

CONNECTIONS = 32
SHAPE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
TEXT = " ".join(tiny.WORDS * 2)  # 44 words
TEXTS = ["anna lives in paris", "the cat sat on the mat . is the dog happy ?", "good film"]
Rows = dict[str, list[Any]]


def main(options: argparse.Namespace) -> dict[str, Any]:
    began, told = perf_counter(), dict[str, Any]({"machine": machine()})
    options.folder.mkdir(parents=True)
    words = [sys.executable, __file__, str(options.folder), "--device", options.device]
    words += ["--small"] * options.small + ["--seconds", str(options.seconds)]
    for part in ("tasks", "loop"):
        guarded(told, part, lambda part=part: json.loads(called([*words, "--part", part])))
    for task in TASKS_SERVED:
        guarded(told, task, partial(served, options, told, task))
    told["took_s"] = round(perf_counter() - began, 1)
    return told


def called(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=170)
    if done.returncode:
        raise RuntimeError(done.stderr[-2500:])
    return done.stdout.splitlines()[-1]


def tasks(options: argparse.Namespace) -> dict[str, Any]:
    """By task: the largest difference between numbers of both devices, and whether all else is equal."""
    found: dict[str, Any] = {}
    for name, (write, parameters, rows) in small_models().items():
        folder = options.folder / name
        guarded(found, name, partial(both, write, folder, parameters, rows, options.device))
    return found


def small_models() -> Mapping[str, tuple[Callable[[Path], Any], dict[str, str], Callable[[], Rows]]]:
    """How each task's model is written, with which parameters it is served, and what it is asked."""
    texts: Rows = {"text": TEXTS}
    masks: Rows = {"text": ["the [MASK] sat on the mat", "[MASK] lives in paris"]}
    questions: Rows = {"question": ["who lives in paris ?"], "context": ["the cat sat . anna lives in paris"]}
    speech: Rows = {"audio": [spoken(seed) for seed in (1, 2)]}
    classes = {"return_probabilities": "true", "return_raw_logits": "true"}
    return {
        "text-classification": (bert("ForSequenceClassification", id2label=tiny.MOODS), classes, lambda: texts),
        "token-classification": (bert("ForTokenClassification", id2label=tiny.ENTITIES), {}, lambda: texts),
        "fill-mask": (bert("ForMaskedLM"), {}, lambda: masks),
        "feature-extraction": (bert("Model"), {}, lambda: texts),
        "question-answering": (bert("ForQuestionAnswering"), {}, lambda: questions),
        "summarization": (tiny.write_t5, {"task": "summarization"}, lambda: texts),
        "image-classification": (tiny.write_vit, classes, lambda: {"image": [picture(seed) for seed in (1, 2, 3)]}),
        "automatic-speech-recognition, CTC": (tiny.write_wav2vec2, {}, lambda: speech),
        "automatic-speech-recognition, Whisper": (tiny.write_whisper, {"max_new_tokens": "12"}, lambda: speech),
    }


def bert(head: str, **config: Any) -> Callable[[Path], Any]:
    return lambda folder: tiny.write_bert(folder, head, **config)


def picture(seed: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def spoken(seed: int) -> bytes:
    with wave.open(file := io.BytesIO(), "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes((np.random.default_rng(seed).standard_normal(8000) * 8000).astype("<i2").tobytes())
    return file.getvalue()


def both(
    write: Callable[[Path], Any], folder: Path, parameters: dict[str, str], rows: Callable[[], Rows], device: str
) -> dict[str, Any]:
    write(folder)
    inputs = rows()
    here, there = (flat(answer(folder, parameters, inputs, each)) for each in ("cpu", device))
    if len(here) != len(there):
        return {"equal": False, "cpu": len(here), device: len(there)}
    pairs = list(zip(here, there, strict=True))
    differences = [abs(a - b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
    others = [(a, b) for a, b in pairs if not isinstance(a, float)]
    return {
        "numbers": len(differences), "largest_difference": max(differences, default=0.0),
        "others": len(others), "equal": all(a == b for a, b in others),
    }  # fmt: skip


def answer(folder: Path, parameters: dict[str, str], inputs: Rows, device: str) -> Any:
    from pilotlight_predictor.backends.base import Device, LoadSpec
    from pilotlight_predictor.backends.huggingface import backend
    from pilotlight_predictor.core.requests import InferRequest
    from pilotlight_predictor.core.tensors import Tensor
    from pilotlight_predictor.repository.model_config import ModelConfig

    columns = {}
    for name, values in inputs.items():
        array = np.empty(len(values), dtype=object)
        array[:] = [value.encode() if isinstance(value, str) else value for value in values]
        columns[name] = Tensor("BYTES", array)
    config = ModelConfig("tiny", parameters=parameters)
    instance = backend.load(LoadSpec(config, 1, folder, folder.parent, Device(device)))
    assert instance._pipeline.model.device.type == device
    (found,) = instance.execute([InferRequest("tiny", columns)])
    if isinstance(found, Exception):
        raise found
    instance.close()
    return {name: tensor.array.tolist() for name, tensor in sorted(found.items())}


def flat(value: Any) -> list[Any]:
    """Leaves of an answer in order, those of JSON in its strings too."""
    if isinstance(value, bytes | str):
        text = value.decode() if isinstance(value, bytes) else value
        return flat(json.loads(text)) if text[:1] in ("[", "{") else [text]
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in flat(each)]
    return [leaf for each in value for leaf in flat(each)] if isinstance(value, list) else [value]


def write_base(folder: Path, head: str, small: bool, device: str) -> None:
    """A BERT of random weights: fp16 on a GPU, as it is served there."""
    import torch
    import transformers

    words = tiny.word_tokenizer()
    words.model_max_length = 512
    shape = tiny.SIZE if small else SHAPE
    config = transformers.BertConfig(vocab_size=30522, id2label=tiny.MOODS, **shape)
    model = getattr(transformers, f"Bert{head}")(config).to(torch.float32 if device == "cpu" else torch.float16)
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def loop(options: argparse.Namespace) -> dict[str, Any]:
    """Texts a second of a plain loop, by task and texts at a time."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    found: dict[str, Any] = {}
    for task, head in TASKS_SERVED.items():
        folder = options.folder / f"base-{task}"
        write_base(folder, head, options.small, options.device)
        words = AutoTokenizer.from_pretrained(folder)
        kind = AutoModel if head == "Model" else AutoModelForSequenceClassification
        model = kind.from_pretrained(folder, dtype="auto").to(options.device).eval()

        def once(rows: int, words: Any = words, model: Any = model, task: str = task) -> Any:
            encoded = words([TEXT] * rows, return_tensors="pt", padding=rows > 1).to(options.device)
            out = model(**encoded)
            if task == "text-classification":
                return [model.config.id2label[best] for best in out.logits.float().softmax(-1).argmax(-1).tolist()]
            mask = encoded["attention_mask"][:, :, None]
            pooled = (out.last_hidden_state.float() * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(pooled, dim=-1).cpu().tolist()

        with torch.inference_mode():
            found[task] = {str(rows): rows * rate(partial(once, rows), options.seconds) for rows in (1, CONNECTIONS)}
    return found


def rate(turn: Callable[[], Any], seconds: float) -> float:
    """Turns a second, after some that do not count."""
    for _ in range(3):
        turn()
    turns, began = 0, perf_counter()
    while (now := perf_counter()) < began + seconds:
        turn()
        turns += 1
    return round(turns / (now - began), 2)


def served(options: argparse.Namespace, told: Mapping[str, Any], task: str) -> dict[str, Any]:
    body = json.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}).encode()
    head = f"POST /v2/models/text/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    found: dict[str, Any] = {}
    for instances in (1, 2):
        more = ["--max-batch-size", str(CONNECTIONS), "--model-parameter", f"task={task}"]
        folder = options.folder / f"base-{task}"
        (folder / "config.pbtxt").write_text(f'backend: "huggingface" instance_group [ {{ count: {instances} }} ]')
        clients = Clients(4)
        with server(folder, options.device, *more) as port:
            one = clients.measure(port, head.encode() + body, CONNECTIONS, 1.0, options.seconds)
        clients.close()
        for rows, bare in told["loop"][task].items():
            one[f"over_loop_of_{rows}"] = round(one["answers_s"] / bare, 3)
        found[f"{instances} instances"] = one
    return found


TASKS_SERVED = {"text-classification": "ForSequenceClassification", "feature-extraction": "Model"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--part", choices=["tasks", "loop"], help="of a process of its own")
    options = parser.parse_args()
    found = {"tasks": tasks, "loop": loop, None: main}[options.part](options)
    print(json.dumps(found, indent=None if options.part else 1))
