"""Text models beside generate and llama.cpp: what is promised, and that only whole answers count."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from bench.load import BenchError
from bench.promises import verdict
from bench.rounds import Result
from bench.text.report import PROMISES, markdown, table
from bench.text.streams import together
from bench.text.weights import prompts

MACHINE = {"cpu": "A CPU", "cores": "2", "memory": "8 GiB", "kernel": "Linux 6", "arch": "x86_64", "python": "3.11.7"}


def result(ours: float) -> Result:
    made = Result("2030-01-02", MACHINE, True, 0.0, 3, benchmark="text")
    for name, rate in (("pilotlight", ours), ("transformers", 100.0), ("llama.cpp", 50.0)):
        made.add(name, {f"r{count}.{key}": rate for count in (1, 8) for key in ("tokens_s", "first_ms", "cpu_ms")})
    return made


@pytest.mark.parametrize(("ours", "word"), [(96.0, "met"), (94.0, "missed")])
def test_our_rate_is_held_against_that_of_generate(ours: float, word: str) -> None:
    one, eight, llama = (verdict(promise, result(ours)) for promise in PROMISES)
    assert (one.word, eight.word, llama.word) == (word, word, "reported")
    assert (one.reason == "a token costs 94.0 ms of CPU, with generate 100.0 ms") is (word == "missed")


def test_the_report_says_that_llama_cpp_has_other_weights() -> None:
    assert "| 8 requests at once: tokens/s | **120.0** | 100.0 (1.2×) | 50.0 (2.4×) |" in table(result(120.0))
    assert "llama.cpp reads its own, of 4 bits each" in markdown(result(120.0))


def test_no_two_prompts_of_a_run_are_alike() -> None:
    every = [text for turn in range(4) for text in prompts(8, turn)]
    assert len(set(every)) == len(every)


class Completions(BaseHTTPRequestHandler):
    """Streams two tokens, and why it ends."""

    reason = "length"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for text, reason in (("a", "null"), ("b", f'"{self.reason}"')):
            self.wfile.write(f'data: {{"choices": [{{"text": "{text}", "finish_reason": {reason}}}]}}\n\n'.encode())

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Completions) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_tokens_count_from_when_all_requests_are_sent(port: int) -> None:
    found = together(port, ["one", "two", "three"], 2, {})
    assert found["tokens_s"] > 0
    assert found["first_ms"] > 0


def test_a_text_that_ends_early_is_no_figure(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Completions, "reason", "stop")
    with pytest.raises(BenchError, match="not 2 tokens"):
        together(port, ["one"], 2, {})
