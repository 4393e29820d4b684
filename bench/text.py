"""`python -m bench.text`: tokens a second and time to the first token, beside a plain loop over transformers' generate.

Both generate as many tokens from the same weights, device and threads. The loop answers one request after
the other, as a program without batching does; the predictor is asked over HTTP by as many streams at once. A request
counts from the moment all of them arrive, so that waiting is part of what is measured.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.environments import WORK
from bench.processes import free_ports

WORDS = ("the", "server", "sleeps", "when", "nobody", "asks", "and", "wakes", "before", "an", "asker", "leaves")
START_S = 300.0


class Figures(NamedTuple):
    tokens_s: float
    first_ms: float


class Case(NamedTuple):
    streams: int
    tokens: int


def write_model(folder: Path) -> Path:
    """A Llama of 17 million random weights: what is measured does not hang on what it says."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *dict.fromkeys(WORDS)])}
    vocabulary |= {f"w{number}": number for number in range(len(vocabulary), 4096)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
        max_position_embeddings=1024, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompts(count: int) -> list[str]:
    return [" ".join(WORDS[(start + step) % len(WORDS)] for step in range(8 + start % 9)) for start in range(count)]


def plain_loop(folder: Path, threads: int, device: str) -> Callable[[Case], Figures]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    model, words = AutoModelForCausalLM.from_pretrained(folder).to(device), AutoTokenizer.from_pretrained(folder)

    def measure(case: Case) -> Figures:
        began, firsts = time.perf_counter(), []
        for prompt in prompts(case.streams):
            ids = words(prompt, return_tensors="pt")["input_ids"].to(device)
            seen = FirstToken()
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=case.tokens, min_new_tokens=case.tokens,
                do_sample=False, streamer=seen, pad_token_id=1,
            )  # fmt: skip
            firsts.append(seen.at - began)
        return _figures(case, time.perf_counter() - began, firsts)

    return measure


class FirstToken:
    """What transformers tells as it generates: first the prompt, then each token."""

    def __init__(self) -> None:
        self.at = 0.0
        self._put = 0

    def put(self, _: Any) -> None:
        self._put += 1
        if self._put == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        return None


@contextlib.contextmanager
def predictor(folder: Path, threads: int, device: str) -> Iterator[Callable[[Case], Figures]]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "pilotlight_predictor", "--host", "127.0.0.1", "--http-port", str(port)]
    command += ["--metrics-port", "-1", "--grpc-port", "-1", "--threads", str(threads), "--device", device]
    command += ["--model-path", str(folder), "--model-name", "text"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait(port)
        with ThreadPoolExecutor(64) as pool:
            yield lambda case: _asked(port, pool, case)
    finally:
        process.terminate()
        process.wait(30)


def _wait(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(_connection(port)) as connection:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise SystemExit("the predictor was not ready in time")


def _asked(port: int, pool: ThreadPoolExecutor, case: Case) -> Figures:
    began = time.perf_counter()
    firsts = list(pool.map(lambda prompt: _stream(port, prompt, case.tokens) - began, prompts(case.streams)))
    return _figures(case, time.perf_counter() - began, firsts)


def _stream(port: int, prompt: str, tokens: int) -> float:
    """When the first token came; all of them must."""
    how = {"model": "text", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    how |= {"stream": True, "stream_options": {"include_usage": True}}
    with contextlib.closing(_connection(port)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(how))
        answer = connection.getresponse()
        answer.readline()
        first = time.perf_counter()
        rest = answer.read()
    if f'"completion_tokens":{tokens}'.encode() not in rest:
        raise SystemExit(f"the predictor gave {answer.status} and not {tokens} tokens: {rest[-300:]!r}")
    return first


def _connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)


def _figures(case: Case, seconds: float, firsts: Sequence[float]) -> Figures:
    return Figures(case.streams * case.tokens / seconds, statistics.median(firsts) * 1e3)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.text", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda; of both")
    parser.add_argument("--model", type=Path, help="a directory in Hugging Face's layout; else one is made")
    options = parser.parse_args(arguments)
    folder = options.model or write_model(WORK / "text-model")
    cases = [Case(streams, options.tokens) for streams in options.streams]
    with predictor(folder, options.threads, options.device) as ask:
        ask(Case(1, 4))
        ours = [ask(case) for case in cases]
    loop = plain_loop(folder, options.threads, options.device)
    loop(Case(1, 4))
    print(f"{'streams':>8} {'tokens/s':>10} {'loop':>8} {'×':>6} {'first ms':>10} {'loop':>8}")
    for case, our, their in zip(cases, ours, [loop(case) for case in cases], strict=True):
        print(
            f"{case.streams:8} {our.tokens_s:10.0f} {their.tokens_s:8.0f} {our.tokens_s / their.tokens_s:6.1f}"
            f" {our.first_ms:10.0f} {their.first_ms:8.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
