"""`python -m bench.prefix_llama_cpp`: prefix-aware routing and round robin before two llama.cpp servers.

Each server has one thread and one core, and serves one request after the other. They start anew for each measurement,
so that all begin with empty caches. One load asks about two documents, of which the servers, as they are by default,
keep the last prompt's KV cache; the other has conversations, sent turn by turn with the responses that came, and
servers with a prompt cache in memory. With two replicas round robin meets a session again half of the time.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.engines import llama_cpp

from bench.__main__ import RESULTS
from bench.environments import WORK
from bench.machine import Cores, describe, slug
from bench.prefix import RATE, Message, Pace, gateway, message, text
from bench.processes import Command, Running, free_ports, running
from bench.text.subjects import llama_programs
from pilotlight.gateway.process import run

BENCHMARK: Final = "prefix-llama-cpp"
STRATEGIES: Final = ("round_robin", "gateway")  # the last: replicas of one revision
DOCUMENTS, CONVERSATIONS = "2 documents", "conversations of 5 turns"
CONTEXT: Final = 2048  # tokens
CACHE: Final = ("--cache", "true", "--cache_size", str(4 << 30))  # a prompt cache of 4 GiB
CLIENTS: Final = 3  # odd: else a conversation would meet one server by chance
TURNS: Final = 5  # of a conversation
# Tokens as bench.prefix counts them; real ones are about twice as many.
DOCUMENT, SYSTEM, QUESTION, GENERATED = 300, 100, 30, 6
CONTENT: Final = re.compile(rb'"content":\s*("(?:[^"\\]|\\.)*")')


@dataclass
class Server:
    port: int


@dataclass
class Figures:
    """Requests a second of clients that do not wait; time to first token in ms at a rate that round robin can serve."""

    load: str
    strategy: str
    throughput: float
    rate: float = 0.0
    first_p50: float = 0.0
    first_p90: float = 0.0


def figures_of(load: str, requests: int) -> list[Figures]:
    figures = [Figures(load, strategy, measure(load, strategy, requests, 0.0)[0]) for strategy in STRATEGIES]
    for each in figures:
        each.rate = RATE * figures[0].throughput
        _, first = measure(load, each.strategy, requests, each.rate)
        each.first_p50, each.first_p90 = (statistics.quantiles(first, n=10)[at] * 1000 for at in (4, 8))
        print(each, file=sys.stderr, flush=True)
    return figures


def measure(load: str, strategy: str, requests: int, rate: float) -> tuple[float, list[float]]:
    """Return requests a second, and the times to first token in seconds."""
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(core, load)) for core in (0, 1)]
        return run(_send(load, strategy, [Server(server.port) for server in servers], requests, rate))


def _server(core: int, load: str) -> AbstractContextManager[Running]:
    ports = free_ports(2)
    argv = [str(llama_programs() / "python"), "-m", "llama_cpp.server", "--model", str(llama_cpp.weights())]
    argv += ["--host", "127.0.0.1", "--port", str(ports[0]), "--n_ctx", str(CONTEXT), "--n_batch", "256"]
    argv += ["--n_threads", "1", "--n_threads_batch", "1", "--interrupt_requests", "false"]
    argv += CACHE if load == CONVERSATIONS else ()
    return running(Command(argv), ports, ["/v1/models"], Cores(core, None), WORK / f"llama-cpp-{core}.log")


def conversations(load: str, requests: int) -> list[tuple[Message, list[str]]]:
    """Return the system message and the questions of each conversation; one about a document has one question."""
    source = random.Random(3)
    length, turns = (DOCUMENT, 1) if load == DOCUMENTS else (SYSTEM, TURNS)
    systems = [message("system", text(source, length)) for _ in range(2 if load == DOCUMENTS else 1)]
    return [(source.choice(systems), [text(source, QUESTION) for _ in range(turns)]) for _ in range(requests // turns)]


async def _send(
    load: str, strategy: str, servers: Sequence[Server], requests: int, rate: float
) -> tuple[float, list[float]]:
    first, work = list[float](), iter(conversations(load, requests))
    async with gateway(strategy, servers) as port:
        started, pace = time.perf_counter(), Pace(rate)

        async def client() -> None:
            for system, questions in work:
                history = [system]
                for question in questions:
                    history = [*history, message("user", question)]
                    await pace.wait()
                    seconds, response = await _ask(port, history)
                    first.append(seconds)
                    history = [*history, message("assistant", response)]

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return len(first) / (time.perf_counter() - started), first


async def _ask(port: int, history: Sequence[Message]) -> tuple[float, str]:
    """Return the time to the first token, and the text."""
    fields = {"messages": history, "model": "llama", "stream": True, "max_tokens": GENERATED, "temperature": 0}
    body = json.dumps(fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
    data = await reader.readuntil(b"data: ")
    first = time.perf_counter() - started
    data += await reader.read(-1)
    writer.close()
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data[:300].decode(errors="replace"))
    return first, "".join(json.loads(each) for each in CONTENT.findall(data))


def table(figures: Sequence[Figures]) -> str:
    """Return the figures as Markdown, with ratios to round robin."""
    titles = "load | strategy | requests/s | | at requests/s | TTFT p50, ms | | p90, ms"
    lines = [f"| {titles} |", "|---|---" + "|--:" * 6 + "|"]
    for each in figures:
        base = next(one for one in figures if one.load == each.load and one.strategy == STRATEGIES[0])
        most = f"{each.throughput:.2f} | {each.throughput / base.throughput:.2f} ×"
        paced = (
            f"{each.rate:.2f} | {each.first_p50:.0f} | {each.first_p50 / base.first_p50:.2f} × | {each.first_p90:.0f}"
        )
        lines.append(f"| {each.load} | `{each.strategy}` | {most} | {paced} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.prefix_llama_cpp", description=__doc__)
    parser.add_argument("--requests", type=int, default=50, help="for each load and strategy")
    parser.add_argument("--keep", action="store_true", help="write into bench/results")
    options = parser.parse_args(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    figures = [each for load in (DOCUMENTS, CONVERSATIONS) for each in figures_of(load, options.requests)]
    machine, date = describe(), datetime.now(UTC).isoformat(timespec="seconds")
    folder: Path = RESULTS if options.keep else WORK / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{date[:10]}-{slug(machine)}-prefix-llama-cpp"
    result = {
        "benchmark": BENCHMARK,
        "date": date,
        "machine": machine,
        "requests": options.requests,
        "clients": CLIENTS,
    }
    stem.with_suffix(".json").write_text(json.dumps({**result, "figures": list(map(asdict, figures))}, indent=2) + "\n")
    stem.with_suffix(".md").write_text(f"# Prefix-aware routing before llama.cpp, {date[:10]}\n\n{table(figures)}\n")
    print(table(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
