"""An execution that never ends costs its own request; the process ends, so that another one takes its place."""

import asyncio
import faulthandler
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.embedded import IRIS
from tests.eventually import eventually_async
from tests.serving import RunningServer, rendered

from pilotlight_predictor.bootstrap.application import Application
from pilotlight_predictor.config import parse
from pilotlight_predictor.server.server_state import Lifecycle

Serve = Callable[..., RunningServer]
DEADLINE = ("--inference-timeout-s", "0.5")
GIL = """
import re

INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    if x[0] > 0:
        re.match(r"(a+)+$", "a" * 40 + "b")  # takes years, without a bytecode between
    return {{"y": x}}
"""


@pytest.mark.long  # the same within the platform: tests/e2e/embedded/test_fault_models.py
def test_a_model_that_hangs_ends_the_server_with_the_request_and_the_model_named(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), *DEADLINE)
    assert server.infer("m", body(1, id="r-7")).status == 504
    assert server.process.wait(60) == 1
    failures = [line["message"] for line in server.log() if line["event"] == "failed"]
    assert failures == [
        "model 'm': an execution has not finished in time (requests r-7); the instance is abandoned; "
        "the server exits so that it is restarted"
    ]


def test_the_watchdog_of_the_gil_ends_with_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Armed on, it would end a drain that takes longer than its limit."""
    calls: list[str] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: calls.append("armed"))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append("cancelled"))

    async def watch() -> None:
        application = Application(
            parse(["--model-path", str(IRIS), "--grpc-port", "-1", *DEADLINE], {}), Lifecycle(0.0, 0.0)
        )
        watching = asyncio.create_task(application._watch_instances(asyncio.Event()))
        await eventually_async(lambda: calls == ["armed"])
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(watch())
    assert calls == ["armed", "cancelled"]


@pytest.mark.long
def test_a_model_that_holds_the_gil_ends_the_server(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, GIL), *DEADLINE)
    with server.connect() as connection:
        connection.sendall(rendered("POST", "/v2/models/m/infer", body(1), None, server.address))
        assert server.process.wait(90) == 1
