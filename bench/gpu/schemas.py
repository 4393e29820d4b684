"""Tokens a second of a text model that follows a JSON schema, with and without CUDA graphs, beside free text.

    PYTHONPATH=platform:predictor:. python bench/gpu/schemas.py FOLDER > schemas.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere. The model has 1.1 B random weights and a
tokenizer of bytes, so that nothing but the grammar leads it to valid JSON. `valid` counts the texts that follow the
schema; all of them must.
"""

import argparse
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from guarded import guarded
from machine import machine
from text import SERVED, SHAPE, SMALL, server

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
NUMBERS = 60
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Köln"]},
        "days": {
            "type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99},
            "minItems": NUMBERS, "maxItems": NUMBERS,
        },
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    },
    "required": ["city", "days", "id"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def main(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine()}
    guarded(results, "written_s", lambda: write(options))
    for name, config in SERVED.items():
        (options.folder / "config.pbtxt").write_text(config)
        guarded(results, name, lambda: measured(options))
    return results


def write(options: argparse.Namespace) -> float:
    """Write a Llama of random weights with a tokenizer of bytes; return the seconds it took."""
    began = time.perf_counter()
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    shape, dtype = (SMALL, "float32") if options.small else (SHAPE, "bfloat16")
    vocabulary = {"<s>": 0, "</s>": 1} | {
        letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 2)
    }
    letters = Tokenizer(models.BPE(vocabulary, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **shape,
    )
    torch.manual_seed(1)
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device(options.device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    options.folder.mkdir(parents=True)
    tokenizer.save_pretrained(options.folder)
    model.save_pretrained(options.folder)
    return round(time.perf_counter() - began, 1)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with server(options.folder, options.device) as port:
        for streams in (1, 8):
            together(port, streams, None, 200)  # graphs are captured at the first step that needs them
            plain = together(port, streams, None, 200)
            schema = together(port, streams, FORMAT, 1000)
            ratio = round(schema["tokens_per_s"] / plain["tokens_per_s"], 3)
            results[f"{streams} at once"] = {"plain": plain, "schema": schema, "schema_over_plain": ratio}
        mixed = [FORMAT if number % 2 else None for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            texts = list(
                pool.map(lambda each: chat(port, each[0], 200 if each[1] is None else 1000, each[1]), enumerate(mixed))
            )
        results["mixed"] = {"valid": sum(follows(text) for text, _ in texts[1::2]), "of": 4}
    return results


def together(port: int, streams: int, form: dict[str, Any] | None, tokens: int) -> dict[str, Any]:
    began = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        done = list(pool.map(partial(chat, port, tokens=tokens, form=form), range(streams)))
    took = time.perf_counter() - began
    count = sum(number for _, number in done)
    results: dict[str, Any] = {"tokens": count, "tokens_per_s": round(count / took, 1)}
    if form is not None:
        results |= {"valid": sum(follows(text) for text, _ in done), "of": streams}
    return results


def chat(port: int, seed: int, tokens: int, form: dict[str, Any] | None) -> tuple[str, int]:
    """Return the text of a chat and how many tokens it has."""
    body: dict[str, Any] = {
        "model": "text", "messages": [{"role": "user", "content": f"Number {seed}"}], "max_tokens": tokens,
        "seed": seed, "temperature": 0.8,
    }  # fmt: skip
    if form is not None:
        body["response_format"] = form
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    document = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"HTTP {response.status}: {document}")
    return document["choices"][0]["message"]["content"], document["usage"]["completion_tokens"]


def follows(text: str) -> bool:
    document = json.loads(text)
    return (
        sorted(document) == ["city", "days", "id"]
        and len(document["days"]) == NUMBERS
        and all(type(each) is int and 10 <= each <= 99 for each in document["days"])
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    print(json.dumps(main(parser.parse_args()), indent=1))
