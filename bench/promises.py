"""Our targets relative to the peers, checked against a result: met, or missed with the measured reason.

Each target is one row of PROMISES. A figure is a ratio within one run, so that a slower machine does not move it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.rounds import Result
from bench.servers import OURS, SERVERS

TITLES = {server.name: server.title for server in SERVERS}
Measured = Callable[[Result], float | None]
NO_REASON = "no reason measured"


@dataclass(frozen=True, slots=True)
class Promise:
    """A target; `bound` is None for a figure that is only reported."""

    label: str
    bound: float | None
    measured: Measured
    reason: Callable[[Result], str | None]
    unit: str = "×"
    more_is_better: bool = True

    def reached(self, value: float) -> bool:
        return self.bound is None or (value >= self.bound if self.more_is_better else value <= self.bound)

    @property
    def promised(self) -> str:
        return "–" if self.bound is None else f"{'≥' if self.more_is_better else '≤'} {self.bound:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is met, missed, reported or not measured; only a missed target has a reason."""

    promise: Promise
    value: float | None
    word: str
    reason: str = ""


def verdict(promise: Promise, result: Result) -> Verdict:
    value = promise.measured(result)
    if value is None:
        return Verdict(promise, None, "not measured")
    if promise.bound is None:
        return Verdict(promise, value, "reported")
    if promise.reached(value):
        return Verdict(promise, value, "met")
    return Verdict(promise, value, "missed", promise.reason(result) or NO_REASON)


def promises(result: Result, which: Sequence[Promise] | None = None) -> str:
    """The table of all targets, by default those relative to the peers; reasons are part of their rows."""
    lines = ["| figure | target | measured | |", "|---|---:|---:|---|"]
    for promise in PROMISES if which is None else which:
        found = verdict(promise, result)
        measured = "–" if found.value is None else f"{found.value:,.3g}{promise.unit}"
        word = f"**{found.word}**" if found.word == "missed" else found.word
        lines.append(
            f"| {promise.label} | {promise.promised} | {measured} | {': '.join(filter(None, (word, found.reason)))} |"
        )
    return "\n".join(lines)


def figure(name: str) -> Measured:
    return lambda result: result.median(OURS, name)


def times(name: str, peer: str) -> Measured:
    """Ours divided by theirs."""

    def measured(result: Result) -> float | None:
        ours, theirs = result.median(OURS, name), result.median(peer, name)
        return ours / theirs if ours is not None and theirs else None

    return measured


def cost(prefix: str, peer: str) -> Callable[[Result], str | None]:
    """CPU that a request took, ours and theirs, and whether a core was used up."""

    def reason(result: Result) -> str | None:
        spent = [_microseconds(result, server, prefix) for server in (OURS, peer)]
        used, load = (result.median(OURS, f"{prefix}.{name}") for name in ("server_cpu", "load_cpu"))
        if spent[0] is None or spent[1] is None or used is None or load is None:
            return None
        return (
            f"a request costs {spent[0]:,.0f} µs of server CPU, with {TITLES[peer]} {spent[1]:,.0f} µs; "
            f"the server used {used:.0%} of its core, the load {load:.0%} of another"
        )

    return reason


def _microseconds(result: Result, server: str, prefix: str) -> float | None:
    cpu, rps = (result.median(server, f"{prefix}.{name}") for name in ("server_cpu", "rps"))
    return cpu / rps * 1e6 if cpu is not None and rps else None


def said(sentence: str) -> Callable[[Result], str | None]:
    """A sentence with our own figures in it by name, such as `{0[big.sink_mb_s]:,.0f}`."""

    def reason(result: Result) -> str | None:
        medians = {name: result.median(OURS, name) for name in result.samples.get(OURS, {})}
        try:
            return sentence.format(medians)
        except KeyError:
            return None

    return reason


def waiting(result: Result) -> str | None:
    """Every connection has one request under way, so the last to come waits for one of each."""
    rate, alone = (result.median(OURS, f"crowd.{name}") for name in ("flood_rps", "alone_p99_ms"))
    if not rate or not alone:
        return None
    return f"one request from each of the 256 others takes {256e3 / rate:,.1f} ms; alone, its p99 is {alone:,.2f} ms"


def beside(label: str, bound: float | None, name: str, peer: str, more_is_better: bool = True) -> Promise:
    """A figure of Pilotlight as a multiple of a peer's."""
    reason = cost(name.rpartition(".")[0], peer)
    return Promise(f"{label}, vs {TITLES[peer]}", bound, times(name, peer), reason, more_is_better=more_is_better)


IMPORTS = said("importing numpy and onnxruntime takes {0[start.imports_s]:.2f} s in a bare interpreter")
PROMISES: tuple[Promise, ...] = (
    beside("JSON, 32 connections: requests/s", 45, "json.c32.rps", "kserve"),
    beside("JSON, 32 connections: requests/s", 5, "json.c32.rps", "triton"),
    beside("JSON, 1 connection: requests/s", 3, "json.c1.rps", "triton"),
    beside("JSON, 1 connection: p99", 0.5, "json.c1.p99_ms", "triton", more_is_better=False),
    beside("JSON, 32 connections: p99", 0.5, "json.c32.p99_ms", "triton", more_is_better=False),
    Promise(
        "10 MB tensor: MB/s, vs a program that only reads",
        60,
        figure("big.sink_percent"),
        said(
            "{0[big.c1.mb_s]:,.0f} of {0[big.sink_mb_s]:,.0f} MB/s, with {0[big.c1.server_cpu]:.0%} of the core used; "
            "one copy in memory runs at {0[big.copy_mb_s]:,.0f} MB/s"
        ),
        " %",
    ),
    Promise("1 connection, 256 others: p99, vs alone", 3, figure("crowd.factor"), waiting, more_is_better=False),
    *(
        Promise(
            f"`--workers 2` on two cores, {what}: requests/s, vs one worker",
            1.8,
            figure(f"workers.r{rows}.factor"),
            said(
                f"the load took {{0[workers.r{rows}.n2.load_cpu]:.2f}} of the two cores, "
                f"which leaves at most {{0[workers.r{rows}.bound]:.2f}}×"
            ),
        )
        for rows, what in ((1, "1 row"), (64, "64 rows"))
    ),
    *(
        Promise(
            f"Python client, {what}: requests/s of AsyncClient, vs tritonclient.http",
            0.9,
            figure(f"python_client.{load}.factor"),
            said(
                f"{{0[python_client.{load}.pilotlight_rps]:,.0f}} of {{0[python_client.{load}.triton_rps]:,.0f}} "
                f"requests/s; tritonclient.http.aio reaches {{0[python_client.{load}.triton_aio_rps]:,.0f}}"
            ),
        )
        for load, what in (
            ("iris.c1", "1 row, 1 caller"),
            ("iris.c32", "1 row, 32 callers"),
            ("image.c8", "602 KB, 8 callers"),
        )
    ),
    Promise("exec → model ready", 0.25, figure("start.ready_s"), IMPORTS, " s", more_is_better=False),
    Promise(
        "exec → model ready: time, vs KServe", 0.25, times("start.ready_s", "kserve"), IMPORTS, more_is_better=False
    ),
    beside("gRPC, 1 row, 1 connection: calls/s", None, "grpc.r1c1.rps", "triton"),
    beside("gRPC, 1 row, 8 connections: calls/s", None, "grpc.r1c8.rps", "triton"),
    beside("gRPC, 8 rows, 8 connections: calls/s", None, "grpc.r8c8.rps", "triton"),
    beside("Hugging Face, BERT, 4 M weights: requests/s", None, "huggingface.bert-tiny.best_rps", "mlserver"),
    beside("Hugging Face, MiniLM, 22 M weights: requests/s", None, "huggingface.minilm.best_rps", "mlserver"),
)
