"""`platformctl demo`: builds the example repository, serves it on loopback, sends real requests, prints what came.

Everything runs from the checkout: the examples are not part of the installed package.
"""

import json
import tempfile
import time
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

import click

from pilotlight.errors import NotFound, PlatformError
from platformctl import output, predictor
from platformctl.child import Child, Reply
from platformctl.showcase import FLOWER, MODELS, Showcase, showcases

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
REPEATS = 200


@click.command()
@click.option("--keep", is_flag=True, help="Keep serving afterwards, until Ctrl-C.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds until every model must be ready.")
@output.output_option
def demo(keep: bool, timeout: float) -> None:
    """Serve the example models and send them real requests."""
    with tempfile.TemporaryDirectory(prefix="pilotlight-demo-") as folder:
        output.heading("Building the example repository")
        build(Path(folder))
        output.heading("Starting the predictor")
        child = Child(predictor.command(*flags(Path(folder))))
        try:
            start = time.monotonic()
            phases = wait(child, start, timeout)
            show(child, phases)
            invite(child, keep)
            if keep:
                stay(child)
        finally:
            child.stop()


def build(target: Path) -> None:
    """Calls examples/build.py of the checkout."""
    script = EXAMPLES / "build.py"
    spec = spec_from_file_location("pilotlight_examples_build", script) if script.is_file() else None
    if spec is None or spec.loader is None:
        raise NotFound("the examples are not beside this program", "run it in a checkout of the repository: make demo")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.build(target, MODELS)
    except SystemExit as error:
        raise PlatformError(str(error)) from None


def flags(repository: Path) -> list[str]:
    return [
        "--model-repository", str(repository), "--host", "127.0.0.1",
        "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0",
    ]  # fmt: skip


def wait(child: Child, start: float, timeout: float) -> dict[str, float]:
    """Prints each state as it comes, then how long each phase of the cold start took."""

    def progress(state: str) -> None:
        output.note(f"  {time.monotonic() - start:6.2f} s  {state or 'starting'}")

    status = child.wait_ready(start + timeout, progress)
    phases = {str(name): float(seconds) for name, seconds in status.get("phases", {}).items()}
    if phases:
        output.heading("Cold start, by phase")
        for line in output.columns([(name, f"{seconds * 1000:.0f} ms") for name, seconds in phases.items()]):
            output.note(line)
    return phases


def show(child: Child, phases: dict[str, float]) -> None:
    """Sends each request; the answers are this command's data."""
    asked = showcases(EXAMPLES)
    answers = [ask(child, showcase) for showcase in asked]
    typical = repeat(child, asked[0]) * 1000
    output.heading("Requests")
    lines = output.columns([(f"{a['question']}?", a["answer"], a["model"], f"{a['ms']:.1f} ms") for a in answers])
    url = f"http://127.0.0.1:{child.port}"
    result = {"url": url, "phases": phases, "answers": answers, "iris_median_ms": round(typical, 3)}
    output.data(result, [*lines, f"  {REPEATS} more to {asked[0].model}, one after the other: median {typical:.2f} ms"])


def invite(child: Child, keep: bool) -> None:
    """What to type next. A server that is about to end has no address to offer: the next one gets a port of its own."""
    if keep:
        output.heading("Try it yourself")
    else:
        output.heading("platformctl demo --keep (make demo KEEP=1) leaves it running, on a port that it tells; then:")
    for line in curls(f"http://127.0.0.1:{child.port if keep else 'PORT'}"):
        output.note(f"  {line}")


def stay(child: Child) -> None:
    output.heading("Serving until Ctrl-C")
    with suppress(KeyboardInterrupt):
        child.process.wait()


def ask(child: Child, showcase: Showcase) -> dict[str, Any]:
    reply = _checked(child.request("POST", showcase.path, showcase.body, showcase.headers), showcase)
    milliseconds = round(reply.seconds * 1000, 3)
    return {"model": showcase.model, "question": showcase.title, "answer": showcase.read(reply), "ms": milliseconds}


def repeat(child: Child, showcase: Showcase) -> float:
    """The median over a connection that is kept, as a client would do it."""
    return median(
        _checked(child.request("POST", showcase.path, showcase.body), showcase).seconds for _ in range(REPEATS)
    )


def _checked(reply: Reply, showcase: Showcase) -> Reply:
    if reply.status != 200:
        raise PlatformError(f"{showcase.model} answered {reply.status}: {reply.body[:300].decode(errors='replace')}")
    return reply


def curls(url: str) -> list[str]:
    document = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FLOWER}]}
    return [
        f"curl {url}/v2/models/iris/infer -d '{json.dumps(document, separators=(',', ':'))}'",
        f"curl {url}/v2/models/iris",
        f"curl {url}/status",
        f"curl {url}/metrics",
    ]
