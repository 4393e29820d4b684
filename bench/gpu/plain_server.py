"""OpenAI completions server of transformers and the standard library alone, without Pilotlight's code.

    python bench/gpu/plain_server.py --gigabytes 8 --port 8000

GPT-2 of bf16 random weights, made on the GPU; without transformers a stack of layers of the same size.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

import torch

SHAPES = {0.5: (2048, 5), 4.0: (4096, 9), 8.0: (4096, 19), 32.0: (4096, 79)}  # width and layers by size
VOCABULARY = 50257


def transformer(width: int, layers: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        config = GPT2Config(n_embd=width, n_layer=layers, n_head=width // 128, vocab_size=VOCABULARY)
        return GPT2LMHeadModel(config).eval()


class Stack(torch.nn.Module):
    """In place of a transformer where the library is missing."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.embedding = torch.nn.Embedding(VOCABULARY, width, **make)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, 12 * width, **make) for _ in range(layers))
        self.head = torch.nn.Linear(width, VOCABULARY, **make)

    def generate(self, ids: torch.Tensor, max_new_tokens: int, **_: Any) -> torch.Tensor:
        for _ in range(max_new_tokens):
            x = self.embedding(ids[:, -1])
            for layer in self.layers:
                x = torch.tanh(layer(x).unflatten(-1, (12, -1)).sum(-2)) + x
            ids = torch.cat([ids, self.head(x).argmax(-1, keepdim=True)], 1)
        return ids


def load(gigabytes: float) -> Any:
    width, layers = SHAPES[gigabytes]
    try:
        return transformer(width, layers)
    except ImportError:
        return Stack(width, layers)


class Handler(BaseHTTPRequestHandler):
    model: Any = None
    lock = Lock()

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "plain"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = torch.tensor([list(body["prompt"].encode())], device="cuda")
        with self.lock, torch.inference_mode():
            new = self.model.generate(ids, max_new_tokens=int(body.get("max_tokens", 8)), do_sample=False)
        text = " ".join(map(str, new[0, ids.shape[1] :].tolist()))
        self._answer({"model": "plain", "choices": [{"text": text}]})

    def _answer(self, document: Any) -> None:
        text = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0, choices=SHAPES)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options, _ = parser.parse_known_args()
    Handler.model = load(options.gigabytes)
    torch.cuda.synchronize()
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
