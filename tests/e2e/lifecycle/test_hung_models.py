"""An execution that never ends costs its own request; the process ends, so that another one takes its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.serving import RunningServer, rendered

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


def test_a_model_that_hangs_ends_the_server_with_the_request_and_the_model_named(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), *DEADLINE)
    assert server.infer("m", body(1, id="r-7")).status == 504
    assert server.process.wait(60) == 1
    failures = [line["message"] for line in server.log() if line["event"] == "failed"]
    assert failures == [
        "model 'm': an execution has not ended in time (requests r-7); the instance is given up; "
        "the server ends, to be started again"
    ]


@pytest.mark.long
def test_a_model_that_holds_the_gil_ends_the_server(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, GIL), *DEADLINE)
    with server.connect() as connection:
        connection.sendall(rendered("POST", "/v2/models/m/infer", body(1), None, server.address))
        assert server.process.wait(90) == 1
