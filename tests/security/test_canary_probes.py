"""Attacks by a model on who probes it: the controller, which drives the canaries of all namespaces."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread, Timer
from typing import Any

import pytest
from tests.platform.canaries.runner.fake_target import PaperTarget
from tests.platform.canaries.runner.test_deaths import current
from tests.platform.canaries.runner.test_no_data import with_policy

from pilotlight.canaries import probes
from pilotlight.canaries.controller import CanaryController, WakeEvent
from pilotlight.canaries.runner import CanaryRunner
from pilotlight.errors import PlatformError, UsageError
from pilotlight.spec.canary_policy import parse_policy
from pilotlight.targets.target import RevisionStatus, ServiceStatus

pytestmark = pytest.mark.security
STATUS = ServiceStatus("models", "hostile", 1, "Ready", "")


@contextmanager
def model(answer: Callable[[socket.socket], Any]) -> Iterator[RevisionStatus]:
    """A server that does this with every connection, once it has sent something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield RevisionStatus("hostile-1", "hostile", "predictor", 100, url=url)
        server.shutdown(socket.SHUT_RDWR)


def probed(revision: RevisionStatus) -> list[int]:
    target = PaperTarget.__new__(PaperTarget)  # open_route alone is called
    return probes.send_probes(target, STATUS, revision, "", 1, probes.Deadline.of_round(time.monotonic))


def metadata(*shapes: list[int]) -> bytes:
    inputs = [{"name": "x", "datatype": "FP32", "shape": shape} for shape in shapes]
    return json.dumps({"inputs": inputs}).encode()


@pytest.mark.parametrize(
    "body",
    [metadata([1 << 40]), metadata([1 << 20, 1 << 20]), b"[" * 100_000, b"[]", b'{"inputs": 1}', b'{"inputs": [{}]}'],
)
def test_metadata_of_a_hostile_model_are_an_error_of_its_canary(body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with model(lambda connection: connection.sendall(head + body)) as revision, pytest.raises(PlatformError):
        probed(revision)


def test_an_answer_without_an_end_takes_neither_memory_nor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)

    with model(flood) as revision, pytest.raises(PlatformError):
        probed(revision)
    monkeypatch.setattr(probes, "RESPONSE_TIMEOUT_S", 0.5)
    begin = time.monotonic()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while time.monotonic() < begin + 60:
            connection.sendall(b" ")
            time.sleep(0.05)

    with model(drip) as revision, pytest.raises(PlatformError):
        probed(revision)
    assert time.monotonic() - begin < 30


def test_an_interval_of_nothing_does_not_keep_the_controller_busy() -> None:
    target = with_policy(interval_s=1e-9)
    assert current(target).policy.interval_s == 1e-9
    controller = CanaryController(target, CanaryRunner(target, now=target.now, clock=target.clock), target.clock, 0.5)
    assert controller.reconcile() == 0.5


def test_an_interval_of_ages_does_not_end_the_canaries_of_others() -> None:
    """The time of the next tick is more than a thread can wait: an exception there ended the thread of all."""
    with pytest.raises(UsageError, match="at most a year"):
        parse_policy({"interval": "9999999999h"})
    wake = WakeEvent()
    Timer(0.1, wake.wake).start()
    assert wake.wait(1e300)
