"""Time to the first token of a text model of 1.1 B weights beside a bare prefill, and its tokens a second.

    PYTHONPATH=platform:predictor:. python bench/gpu/text.py FOLDER > text.json

FOLDER is made, and must not exist. `--small --device cpu` tries it anywhere. The prompt has 512 tokens; the bare
prefill is the same module in a plain loop: ids from a list, one forward with a cache, the argmax back. A part that
fails says so in the JSON and the others go on. `engine_first_ms` is the backend without HTTP, `phases_ms` where its
time goes.
"""

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from guarded import guarded
from machine import machine
from text_alone import TOKENS, TURNS, middle, prompt

HERE = Path(__file__).resolve().parent
SHAPE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
         "num_key_value_heads": 4}  # fmt: skip
# By name: the model's configuration.
SERVED = {"served": 'backend: "text"', "served_by_graphs": 'backend: "text"  optimization { cuda { graphs: true } }'}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def main(options: argparse.Namespace) -> dict[str, Any]:
    began, told = perf_counter(), dict[str, Any](machine=machine(), fronts=options.fronts)
    options.folder.mkdir(parents=True)
    shape, size, dtype = (SMALL, 1024, "float32") if options.small else (SHAPE, 32000, "bfloat16")
    guarded(told, "written_s", lambda: write(options.folder, shape, size, options.device, dtype))
    guarded(told, "alone", lambda: alone_in_its_process(options, told))
    for name in SERVED:
        with contextlib.suppress(KeyError, TypeError):
            told[name]["first_token_over_prefill"] = round(told[name]["first_ms"] / told[name]["prefill_ms"], 3)
    told["took_s"] = round(perf_counter() - began, 1)
    return told


def write(folder: Path, shape: Mapping[str, int], size: int, device: str, dtype: str) -> float:
    """Write a Llama of random weights whose tokenizer knows `size` words, w3 and on; return the seconds it took."""
    began = perf_counter()
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, size)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    config = LlamaConfig(
        vocab_size=size, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=1, **shape
    )
    torch.manual_seed(1)
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    model.save_pretrained(folder)
    return round(perf_counter() - began, 1)


def alone_in_its_process(options: argparse.Namespace, told: dict[str, Any]) -> Any:
    """It stays while the server is asked: its bare prefills, between two requests each, find the machine as they do."""
    words = [sys.executable, str(HERE / "text_alone.py"), str(options.folder), options.device]
    errors = options.folder.with_suffix(".alone.log").open("w+")
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def bare() -> float:
        print("prefill", file=process.stdin, flush=True)
        return float(process.stdout.readline())

    try:
        line = process.stdout.readline()
        if not line:
            errors.seek(0)
            raise RuntimeError(errors.read()[-2500:])
        for name in options.ways:
            (options.folder / "config.pbtxt").write_text(SERVED[name])
            guarded(told, name, lambda: served(options, bare))
        return json.loads(line)
    finally:
        process.kill()
        process.wait()


def served(options: argparse.Namespace, bare: Callable[[], float]) -> dict[str, Any]:
    fronts = ("--fronts", str(options.fronts)) if options.fronts else ()
    with server(options.folder, options.device, *fronts) as port:
        pairs = [(first(port, prompt(seed), 4)[0], bare()) for seed in range(TURNS)]
        firsts = [one for one, _ in pairs]
        told: dict[str, Any] = {"first_ms": middle(firsts[5:]), "prefill_ms": middle([two for _, two in pairs][5:])}
        told["first_p90_ms"] = round(sorted(firsts[5:])[int(len(firsts[5:]) * 0.9)] * 1e3, 3)
        for streams in options.streams:
            guarded(told, f"{streams} streams", partial(together, port, streams))
        return told


@contextlib.contextmanager
def server(folder: Path, device: str, *more: str) -> Iterator[int]:
    """A predictor with the model in `folder`, which is named text; gives its port."""
    log = Path(f"{folder}.{time.monotonic_ns()}.log")
    words = ["-m", "pilotlight_predictor", "--model-path", str(folder), "--model-name", "text", "--device", device,
             "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "-1", "--metrics-port", "-1",
             "--log-format", "json", *more]  # fmt: skip
    with log.open("w") as errors:
        process = subprocess.Popen([sys.executable, *words], stderr=errors)
    try:
        yield listening(process, log)
    finally:
        process.terminate()
        process.wait(30)


def listening(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("event") == "listening" and ready(int(told["http_port"])):
                return int(told["http_port"])
        time.sleep(0.1)
    raise RuntimeError(f"the server is not ready: {log.read_text()[-2000:]}")


def ready(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    return False


def first(port: int, text: str, tokens: int) -> tuple[float, float]:
    """Seconds to the first token and to the last."""
    how = {"model": "text", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    how |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(how)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=100)) as connection:
        connection.connect()
        began = perf_counter()
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        answer.readline()
        came = perf_counter()
        rest = answer.read()
    if f'"completion_tokens":{tokens}'.encode() not in rest:
        raise RuntimeError(f"the server gave {answer.status} and not {tokens} tokens: {rest[-300:]!r}")
    return came - began, perf_counter() - began


def together(port: int, streams: int) -> dict[str, float]:
    with ThreadPoolExecutor(streams) as pool:
        began = perf_counter()
        times = list(pool.map(lambda seed: first(port, prompt(seed), TOKENS), range(streams)))
        took = perf_counter() - began
    after_first = max(last for _, last in times) - max(came for came, _ in times)
    return {
        "tokens_s": round(streams * TOKENS / took, 1), "first_ms": middle([came for came, _ in times]),
        "last_first_to_end_s": round(after_first, 3),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--fronts", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=SERVED, default=list(SERVED))
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32], help="at once")
    print(json.dumps(main(parser.parse_args()), indent=1))
