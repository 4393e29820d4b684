"""The plain loop: transformers' generate over a batch of prompts, in a process of its own that is asked line by line.

    python -m bench.text.generate FOLDER DEVICE THREADS

Texts in and texts out are part of what is timed, as a server's are. No token ends a text. Nothing is handed out on the
way, so the first token is timed by a second call for one token.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.load import BenchError
from bench.text.streams import Figures

Ask = Callable[[Sequence[str], int], Figures]


@contextlib.contextmanager
def generating(folder: Path, device: str, threads: int) -> Iterator[tuple[int, Ask]]:
    """The process's id, and what has it generate so many tokens for each text."""
    words = [sys.executable, "-m", "bench.text.generate", str(folder), device, str(threads)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(texts: Sequence[str], tokens: int) -> Figures:
        print(json.dumps([list(texts), tokens]), file=stdin, flush=True)
        if not (line := stdout.readline()):
            raise BenchError("generate has ended; its errors are above")
        return dict(json.loads(line))

    try:
        yield process.pid, ask
    finally:
        process.kill()
        process.wait()


def main(folder: Path, device: str, threads: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if threads:
        torch.set_num_threads(threads)
    words = AutoTokenizer.from_pretrained(folder, padding_side="left")
    words.pad_token = words.pad_token or words.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, words.pad_token_id
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans an attention for each new length, as ours has found too

    def timed(texts: Sequence[str], tokens: int) -> float:
        began = time.perf_counter()
        ids = words(texts, return_tensors="pt", padding=len(texts) > 1).to(device)
        before = ids["input_ids"].shape[1]
        out = model.generate(**ids, max_new_tokens=tokens, do_sample=False)
        words.batch_decode(out[:, before:].tolist())
        if out.shape[1] != before + tokens:
            raise BenchError(f"generate gave {out.shape[1] - before} tokens of {tokens}")
        return time.perf_counter() - began

    for line in sys.stdin:
        texts, tokens = json.loads(line)
        before = time.process_time()
        rate = len(texts) * tokens / timed(texts, tokens)
        found = {"tokens_s": rate, "cpu_s": time.process_time() - before, "first_ms": timed(texts, 1) * 1e3}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
