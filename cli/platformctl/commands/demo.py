"""`platformctl demo`: builds the example repository, serves it on loopback, sends real requests, prints what came.

Everything runs from the checkout: the examples are not part of the installed package.
"""

import json
import tempfile
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any

import click

from platformctl import output
from platformctl.child import Child, Reply
from platformctl.errors import CommandError, NotFound
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
        repository = Path(folder)
        output.heading("Building the example repository")
        build(repository)
        output.heading("Starting the predictor")
        child = Child(flags(repository))
        try:
            result = show(child, timeout)
            output.data(result, [])
            if keep:
                output.heading(f"Serving on http://127.0.0.1:{child.port} until Ctrl-C")
                child.process.wait()
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
        raise CommandError(str(error)) from None


def flags(repository: Path) -> list[str]:
    return [
        "--model-repository", str(repository), "--host", "127.0.0.1",
        "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0",
    ]  # fmt: skip


def show(child: Child, timeout: float) -> dict[str, Any]:
    """Waits for readiness, sends each request, and says what happened on the way."""
    start = time.monotonic()
    status = child.wait_ready(
        start + timeout, lambda state: output.note(f"  {time.monotonic() - start:6.2f} s  {state}")
    )
    phases = {str(name): float(seconds) for name, seconds in status.get("phases", {}).items()}
    output.heading("Cold start, by phase")
    for line in output.columns(
        [(name, f"{seconds * 1000:.0f} ms") for name, seconds in phases.items()] or [("-", "-")]
    ):
        output.note(line)
    output.heading("Requests")
    answers = [ask(child, showcase) for showcase in showcases(EXAMPLES)]
    repeated = repeat(child, showcases(EXAMPLES)[0])
    output.note(f"  {REPEATS} more to iris, one after the other: median {repeated * 1000:.2f} ms")
    output.heading("Try it yourself (with --keep)")
    for line in curls(child.port):
        output.note(f"  {line}")
    url = f"http://127.0.0.1:{child.port}"
    return {"url": url, "phases": phases, "answers": answers, "iris_median_ms": round(repeated * 1000, 3)}


def ask(child: Child, showcase: Showcase) -> dict[str, Any]:
    reply = _checked(child.request("POST", showcase.path, showcase.body, showcase.headers), showcase)
    answer, milliseconds = showcase.read(reply), reply.seconds * 1000
    output.note(f"  {showcase.title}? {click.style(answer, fg='green')}  [{showcase.model}, {milliseconds:.1f} ms]")
    return {"model": showcase.model, "question": showcase.title, "answer": answer, "ms": round(milliseconds, 3)}


def repeat(child: Child, showcase: Showcase) -> float:
    """The median over a connection that is kept, as a client would do it."""
    return median(
        _checked(child.request("POST", showcase.path, showcase.body), showcase).seconds for _ in range(REPEATS)
    )


def _checked(reply: Reply, showcase: Showcase) -> Reply:
    if reply.status != 200:
        raise CommandError(f"{showcase.model} answered {reply.status}: {reply.body[:300].decode(errors='replace')}")
    return reply


def curls(port: int) -> list[str]:
    document = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FLOWER}]}
    url = f"http://127.0.0.1:{port}"
    return [
        f"curl {url}/v2/models/iris/infer -d '{json.dumps(document, separators=(',', ':'))}'",
        f"curl {url}/v2/models/iris",
        f"curl {url}/status",
        f"curl {url}/metrics",
    ]
