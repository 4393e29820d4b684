"""`python -m bench.prefix`: prefix-aware routing and round robin on stand-in engines with a model of a prefix cache.

An engine computes the tokens of a prompt that its cache lacks, one prompt after another, generates for all requests at
the same time, and has what it generated in its cache, as vLLM and llama.cpp do. The load passes a real gateway; all
strategies meet the same requests, engines and speeds. No strategy can have a lower time to first token than the floor:
the prefill of the tokens that no engine has had.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from bench.__main__ import RESULTS
from bench.environments import WORK
from bench.machine import busy_share, describe, slug
from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.engine_router.load_balancer import RouterDataPlane
from pilotlight.gateway.engine_router.settings import RouterSettings
from pilotlight.gateway.process import run
from pilotlight.gateway.proxy.data_plane import DataPlane
from pilotlight.gateway.routing_table import Backend, Replica, Route, Table

BENCHMARK: Final = "prefix"
BUSY: Final = 0.1  # share of the machine that others may use
STRATEGIES: Final = ("round_robin", "least_loaded", "prefix_aware", "gateway")  # the last: replicas of one revision
ENGINES: Final = 8
TOKEN: Final = 4  # characters
PREFILL_S: Final = 0.0001  # of a token: 10,000 tokens/s, as an 8B model on one GPU
DECODE_S: Final = 0.002  # of a token, whatever the batch
BLOCK: Final = 16  # tokens, as in vLLM
CACHE: Final = 40_000  # tokens of an engine
GENERATED: Final = 20  # tokens of a response, in time; its text in a conversation may be longer
RATE: Final = 0.8  # of round robin's throughput, at which times to first token are compared
WORDS: Final = ("lighthouse", "harbour", "foghorn", "keeper", "storm", "lantern", "island", "vessel")

Message = dict[str, str]


class PrefixCache:
    """LRU cache of blocks; a block is known by the whole prefix up to its end."""

    def __init__(self, tokens: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._limit = tokens // BLOCK

    def add(self, text: str) -> int:
        """Return how many tokens of the text were there, and add the others."""
        prefix, hits, missed = 0, 0, False
        for start in range(0, len(text) - BLOCK * TOKEN + 1, BLOCK * TOKEN):
            prefix = hash((prefix, text[start : start + BLOCK * TOKEN]))
            missed = missed or prefix not in self._blocks
            hits += not missed
            self._blocks[prefix] = None
            self._blocks.move_to_end(prefix)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)
        return hits * BLOCK


class Engine:
    """Streams a chat completion: the first token after the prefill, the others after the generation."""

    def __init__(self) -> None:
        self._cache = PrefixCache(CACHE)
        self._prefill = asyncio.Lock()
        self.prompt_tokens = self.cached_tokens = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await self._answer(json.loads(await reader.readexactly(length)), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        text = written(body["messages"])
        async with self._prefill:
            cached = self._cache.add(text)
            self.prompt_tokens += len(text) // TOKEN
            self.cached_tokens += cached
            await asyncio.sleep((len(text) // TOKEN - cached) * PREFILL_S)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await asyncio.sleep(GENERATED * DECODE_S)
        self._cache.add(text + written([message("assistant", body["response"])]))
        writer.write(b"4\r\nrest\r\n0\r\n\r\n")


@dataclass
class Figures:
    """Most requests a second, share of prompt tokens that were cached; time to first token in ms at the same rate."""

    load: str
    strategy: str
    throughput: float
    cached: float
    rate: float = 0.0  # requests a second of the times to first token
    first_p50: float = 0.0
    first_p99: float = 0.0
    first_floor: float = 0.0


def text(source: random.Random, tokens: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < tokens * TOKEN:
        words.append(source.choice(WORDS) + str(source.randint(0, 999)))
    return " ".join(words)[: tokens * TOKEN]


class Turn(NamedTuple):
    """Messages of a request, and the response that the stand-in engine gives."""

    messages: list[Message]
    response: str


def shared_prefix(requests: int) -> list[list[Turn]]:
    """Questions about 64 documents of 3,000 tokens: more than one cache holds, less than all of them."""
    source = random.Random(1)
    documents = [text(source, 3000) for _ in range(64)]
    asked = [source.choice(documents) for _ in range(requests)]
    return [[Turn([message("system", each), message("user", text(source, 30))], "")] for each in asked]


def multi_turn(requests: int, turns: int, question: int, response: int) -> list[list[Turn]]:
    """Conversations after one system prompt of 500 tokens; each turn adds a question and a response."""
    source, conversations = random.Random(2), []
    system = message("system", text(source, 500))
    for _ in range(requests // turns):
        history, conversation = [system], []
        for _ in range(turns):
            history = [*history, message("user", text(source, question))]
            conversation.append(Turn(history, text(source, response)))
            history = [*history, message("assistant", conversation[-1].response)]
        conversations.append(conversation)
    return conversations


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def written(messages: Iterable[Message]) -> str:
    """Return messages as the text that an engine computes."""
    return "".join(f"{each['role']}: {each['content']}\n" for each in messages)


def floor(load: str, requests: int) -> float:
    """Return the median time in ms to compute the tokens that no engine has had: the least time to first token."""
    cache, new = PrefixCache(sys.maxsize), list[int]()
    for turn in (turn for conversation in LOADS[load](requests) for turn in conversation):
        prompt = written(turn.messages)
        new.append(len(prompt) // TOKEN - cache.add(prompt))
        cache.add(prompt + written([message("assistant", turn.response)]))
    return statistics.median(new) * PREFILL_S * 1000


LOADS: Final[Mapping[str, Callable[[int], list[list[Turn]]]]] = {
    "shared prefix": shared_prefix,
    "16 turns of 250 tokens": partial(multi_turn, turns=16, question=150, response=100),
    "8 turns of 400 tokens": partial(multi_turn, turns=8, question=250, response=150),
}


@asynccontextmanager
async def gateway(strategy: str, engines: Iterable[Engine]) -> AsyncIterator[int]:
    """The port of a gateway before the engines."""
    replicas = tuple(Replica(f"engine-{engine.port}", engine.port) for engine in engines)
    plane: DataPlane
    if strategy == "gateway":
        plane = DataPlane(lambda wake: None, lambda unreachable: None, AccessAdmission())
        backend = Backend("llama-1", "llama", 100, replicas)
        plane.publish(Table(1, (Route("default", "llama", (backend,), models=("llama",)),)))
        factory = plane.protocol_factory(None)
    else:
        plane = RouterDataPlane(RouterSettings("llama", strategy=strategy))
        plane.set_endpoints(replicas, ())
        factory = plane.protocol_factory(plane.key)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await plane.drain(1.0)


class Pace:
    """Starts of requests at a rate, over all clients; a rate of 0 is as fast as they can."""

    def __init__(self, rate: float) -> None:
        self._period = 1 / rate if rate else 0.0
        self._next = time.perf_counter()

    async def wait(self) -> None:
        self._next += self._period
        await asyncio.sleep(max(0.0, self._next - self._period - time.perf_counter()))


def figures_of(load: str, requests: int, clients: int) -> list[Figures]:
    """Measure all strategies, each with clients that do not wait, then at a rate that round robin can serve."""
    figures = []
    for strategy in STRATEGIES:
        throughput, cached, _ = run(measure(load, strategy, requests, clients, 0.0))
        figures.append(Figures(load, strategy, throughput, cached))
    for each in figures:
        each.rate = RATE * figures[0].throughput
        _, _, first = run(measure(load, each.strategy, requests, clients, each.rate))
        each.first_floor = floor(load, requests)
        each.first_p50, each.first_p99 = (statistics.quantiles(first, n=100)[at] * 1000 for at in (49, 98))
    return figures


async def measure(
    load: str, strategy: str, requests: int, clients: int, rate: float
) -> tuple[float, float, list[float]]:
    """Return requests a second, the share of cached tokens, and the times to first token in seconds."""
    engines = [Engine() for _ in range(ENGINES)]
    servers = [await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 20) for engine in engines]
    for engine, server in zip(engines, servers, strict=True):
        engine.port = server.sockets[0].getsockname()[1]
    work, first = iter(LOADS[load](requests)), list[float]()
    async with gateway(strategy, engines) as port:
        started, pace = time.perf_counter(), Pace(rate)
        await asyncio.gather(*(client(port, work, pace, first) for _ in range(clients)))
        seconds = time.perf_counter() - started
    for server in servers:
        server.close()
    cached = sum(engine.cached_tokens for engine in engines) / sum(engine.prompt_tokens for engine in engines)
    return len(first) / seconds, cached, first


async def client(port: int, work: Iterable[list[Turn]], pace: Pace, first: list[float]) -> None:
    """Send one conversation after another, each turn after the response to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for conversation in work:
        for turn in conversation:
            body = json.dumps({**turn._asdict(), "model": "llama", "stream": True}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            await pace.wait()
            started = time.perf_counter()
            writer.write(head.encode() + body)
            await reader.readuntil(b"first")
            first.append(time.perf_counter() - started)
            await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()


def table(figures: Sequence[Figures]) -> str:
    """Return the figures as Markdown, with ratios to round robin."""
    titles = "load | strategy | requests/s | | cached | at requests/s | TTFT p50, ms | | p99, ms | floor, ms"
    lines = [f"| {titles} |", "|---|---" + "|--:" * 8 + "|"]
    for each in figures:
        base = next(one for one in figures if one.load == each.load and one.strategy == STRATEGIES[0])
        more, first = each.throughput / base.throughput, each.first_p50 / base.first_p50
        most = f"{each.throughput:.0f} | {more:.2f} × | {each.cached:.0%}"
        paced = (
            f"{each.rate:.0f} | {each.first_p50:.0f} | {first:.2f} × | {each.first_p99:.0f} | {each.first_floor:.0f}"
        )
        lines.append(f"| {each.load} | `{each.strategy}` | {most} | {paced} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.prefix", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="for each load and strategy")
    parser.add_argument(
        "--clients",
        type=int,
        default=61,
        help="no multiple of the engines: else a session of a client meets one engine by chance",
    )
    parser.add_argument("--quick", action="store_true", help="200 requests")
    options = parser.parse_args(arguments)
    quiet = busy_share() <= BUSY
    if not quiet:
        print("warning: something else keeps this machine busy; the figures will not be kept", file=sys.stderr)
    requests = 200 if options.quick else options.requests
    figures = [each for load in LOADS for each in figures_of(load, requests, options.clients)]
    machine, date = describe(), datetime.now(UTC).isoformat(timespec="seconds")
    result = {
        "benchmark": BENCHMARK,
        "date": date,
        "machine": machine,
        "requests": requests,
        "clients": options.clients,
    }
    folder = RESULTS if quiet and not options.quick else WORK / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{date[:10]}-{slug(machine)}-prefix"
    stem.with_suffix(".json").write_text(json.dumps({**result, "figures": list(map(asdict, figures))}, indent=2) + "\n")
    stem.with_suffix(".md").write_text(f"# Prefix-aware routing, {date[:10]}\n\n{table(figures)}\n")
    print(table(figures))
    print(f"written: {stem}.json, .md", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
