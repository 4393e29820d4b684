"""The result as people read it: one column for each subject, what was promised, and what to know of llama.cpp's."""

from collections.abc import Callable
from typing import Final

from bench.promises import Promise, promises, times
from bench.report import Row, cell, loads
from bench.rounds import Result
from bench.servers import OURS
from bench.text.subjects import GENERATE, LLAMA_CPP, SUBJECTS
from bench.text.weights import TITLE

BENCHMARK: Final = "text"
REQUESTS: Final = (1, 8)
KEPT: Final = 0.95  # of generate's rate
ROWS: Final = tuple(
    row
    for count in REQUESTS
    for row in (
        Row(f"r{count}.tokens_s", f"{count} request{'s' * (count > 1)} at once: tokens/s", True, 1),
        Row(f"r{count}.first_ms", f"{count} request{'s' * (count > 1)} at once: first token, ms", digits=0),
        Row(f"r{count}.cpu_ms", f"{count} request{'s' * (count > 1)} at once: CPU of a token, ms", digits=1),
    )
)


def cost(count: int) -> Callable[[Result], str | None]:
    def reason(result: Result) -> str | None:
        ours, theirs = (result.median(name, f"r{count}.cpu_ms") for name in (OURS, GENERATE))
        if ours is None or theirs is None:
            return None
        return f"a token costs {ours:.1f} ms of CPU, with generate {theirs:.1f} ms"

    return reason


PROMISES: Final = (
    *(
        Promise(
            f"{count} at once: tokens/s, vs transformers.generate with a batch of {count}",
            KEPT,
            times(f"r{count}.tokens_s", GENERATE),
            cost(count),
        )
        for count in REQUESTS
    ),
    Promise("8 at once: tokens/s, vs llama.cpp", None, times("r8.tokens_s", LLAMA_CPP), cost(8)),
)


def table(result: Result) -> str:
    """One column for each subject; in brackets how many times better ours is."""
    names = [name for name in SUBJECTS if name in result.samples]
    titles = " | ".join(f"**{SUBJECTS[name].title}**" for name in names)
    lines = [f"| | {titles} |", "|---|" + "---:|" * len(names)]
    lines += [f"| {row.label} | " + " | ".join(cell(result, row, name) for name in names) + " |" for row in ROWS]
    return "\n".join(lines)


def conditions(result: Result) -> str:
    machine = result.machine
    where = ", ".join([machine["cpu"], f"{machine['cores']} cores", machine["memory"], machine["kernel"]])
    pinning = "each on one core, which all share and only one at a time uses" if result.pinned else "nothing pinned"
    return (
        f"{result.date[:10]}, {where}{loads(machine)}. {TITLE} on a CPU, prompts of about 60 tokens, greedy, one "
        f"thread, {pinning}; medians of {result.rounds} rounds in turns. Pilotlight and generate have the weights in "
        "bfloat16; llama.cpp reads its own, of 4 bits each, and llama-cpp-python's server, built for AVX2, answers one "
        "request after the other. The first token of generate is that of a call for one. In parentheses: Pilotlight's "
        f"advantage as a factor. {', '.join(result.versions.values())}, Python {machine['python']}."
    )


def section(result: Result) -> str:
    return "\n\n".join([table(result), conditions(result), promises(result, PROMISES)])


def markdown(result: Result) -> str:
    failures = ["\n".join(["Not measured:", *(f"- {failure}" for failure in result.failures)])] * bool(result.failures)
    return "\n\n".join(["# Text generation beside transformers and llama.cpp", section(result), *failures]) + "\n"
