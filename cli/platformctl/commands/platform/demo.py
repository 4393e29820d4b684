"""`platformctl demo`: a tour of the embedded platform in under a minute, using its verbs.

Deploys an example, sends requests, runs a canary with 20 %, promotes it, waits for scale to zero and wakes it.
Everything is left running. The documents are examples/demo of the checkout, which the wheel holds too.
"""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from pilotlight.errors import PlatformError
from pilotlight.render.jinja_templates import folder
from pilotlight.targets.target import ServiceStatus
from pilotlight.wire.environments.install_command import install_command
from platformctl import output, targets
from platformctl.main import run
from platformctl.profiles.profile_measurement import wait
from platformctl.targets import Gateway

NAME: Final = "demo-iris"
KEY: Final = ("default", NAME)
FLOWER: Final = (5.1, 3.5, 1.4, 0.2)
BURST: Final = 100


@click.command()
@click.option(
    "--stop", is_flag=True, help="Delete the example at the end, and stop the platform if it runs nothing else."
)
def demo(stop: bool) -> None:
    """Deploy an example, try a canary, scale to zero and wake it.

    Example: platformctl demo
    """
    first, second = (documents() / name for name in ("iris.yaml", "iris-batching.yaml"))
    flower = json.dumps(list(FLOWER))
    print_step("Deploy a model and send it a request")
    run_verb("deploy", "-f", typed_path(first), "--reset")
    run_verb("infer", NAME, "--data", flower)
    print_step("A second revision, with batching, gets 20 % of the traffic, then all of it")
    run_verb("canary", "start", NAME, "-f", typed_path(second), "--percent", "20")
    send_requests()
    run_verb("canary", "status", NAME, "-o", "wide")
    run_verb("canary", "promote", NAME)
    print_step("Without requests the service scales to zero")
    wait_for_zero()
    run_verb("status", NAME)
    print_step("The next request waits until a replica has started")
    run_verb("infer", NAME, "--data", flower)
    print_cold_start()
    finish(stop)


def documents() -> Path:
    """Return the folder of the documents. Raise PlatformError if their model cannot be served here."""
    if find_spec("onnxruntime") is None:
        raise PlatformError("the model of the demo needs onnxruntime, which is not installed", install_command("onnx"))
    return folder("examples") / "demo"


def typed_path(path: Path) -> str:
    """Return the path relative to the working directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def print_step(title: str) -> None:
    output.note("")
    output.heading(title)


def run_verb(*words: str) -> None:
    """Print and run one command line; raises PlatformError if it fails."""
    output.note(f"$ platformctl {shlex.join(words)}")
    code = run(words)
    if code:
        raise PlatformError(
            f"the demo ends here: platformctl {words[0]} exited with code {code}", "see platformctl doctor"
        )


def status() -> ServiceStatus:
    return targets.local(start=True).status(KEY)


def send_requests() -> None:
    """Send a burst of requests, and wait until the revisions have counted them."""
    gateway = Gateway(status().url)
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": FLOWER}
    body = json.dumps({"inputs": [tensor]}).encode()
    answers = [gateway.request("POST", f"/v2/models/{NAME}/infer", body).status for _ in range(BURST)]
    wait(lambda: sum(row.requests for row in status().revisions) >= BURST, "the requests to be counted")
    output.note(f"{BURST} requests sent, {answers.count(200)} succeeded")


def wait_for_zero() -> None:
    start = time.monotonic()
    wait(lambda: status().phase == "Standby", f"{NAME} to scale to zero")
    output.note(f"scaled to zero after {time.monotonic() - start:.1f} s")


def print_cold_start() -> None:
    """Print the phases of the last cold start."""
    newest = status().revisions[0]
    rows = [(name, f"{seconds * 1000:.0f} ms") for name, seconds in newest.cold_start.items()]
    output.heading("Phases of the cold start")
    for line in output.columns(rows):
        output.note(line)


def finish(stop: bool) -> None:
    if stop:
        run_verb("delete", NAME)
        if not targets.local(start=True).list(None):
            run_verb("down")
        return
    print_step("The service keeps running. Try:")
    look: Sequence[tuple[str, str]] = (
        *((line, "puts platformctl on the PATH") for line in activation()),
        (f"curl {status().url}/v2/models/{NAME}", "metadata of the model"),
        (f"platformctl status {NAME} -w", "revisions, replicas, latency, decisions"),
        (f"platformctl events {NAME}", "deploys and scaling decisions"),
        (f"platformctl logs {NAME} -f", "logs of replicas"),
        ("platformctl down", "stop everything"),
    )
    for line in output.columns(look):
        output.note(line)


def activation() -> list[str]:
    """Return the line that puts platformctl on the PATH, if it is not there."""
    script = Path(sys.executable).with_name("activate")
    return [f". {shlex.quote(typed_path(script))}"] if not shutil.which("platformctl") and script.is_file() else []
