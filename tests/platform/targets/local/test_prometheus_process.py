"""A Prometheus beside the platform that ends by itself comes again, also after its program was away for a while."""

import asyncio
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.eventually import eventually_async

from pilotlight.targets.local import prometheus_process
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire import machine

PATIENCE_S = 60.0
# Answers every question on the address that it is told, as one that is ready does.
PROGRAM = f"""#!{sys.executable}
import http.server, sys

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

told = dict(word.split("=", 1) for word in sys.argv[1:])
host, _, port = told["--web.listen-address"].rpartition(":")
http.server.ThreadingHTTPServer((host, int(port)), Ready).serve_forever()
"""


def test_one_whose_program_was_away_is_started_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prometheus_process, "PAUSE_S", 0.05)
    monkeypatch.setattr(prometheus_process, "LONGEST_PAUSE_S", 0.2)
    home, program = Home(tmp_path / "home"), tmp_path / "prometheus"
    home.create()
    program.write_text(PROGRAM)
    program.chmod(0o755)

    async def lived() -> None:
        await prometheus_process.PrometheusServer(home, program, 1).start()
        first = prometheus_process.running(home)
        assert first is not None
        program.rename(tmp_path / "elsewhere")
        os.kill(first.identity.pid, signal.SIGKILL)
        await eventually_async(lambda: caplog.text.count("cannot be started") >= 2, "two attempts that failed")
        (tmp_path / "elsewhere").rename(program)
        await eventually_async(lambda: prometheus_process.running(home) is not None, "it to run again")

    async def played() -> None:
        try:
            await lived()
        finally:
            await prometheus_process.stop(home)

    asyncio.run(played())


class Another(BaseHTTPRequestHandler):
    """A Prometheus of somebody else, which is ready."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_a_port_that_another_takes_meanwhile_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, program, free = Home(tmp_path / "home"), tmp_path / "prometheus", machine.free_port
    home.create()
    program.write_text(PROGRAM)
    program.chmod(0o755)

    async def played(taken: int) -> str:
        monkeypatch.setattr(prometheus_process, "free_port", lambda wanted=0: taken if wanted else free())
        try:
            return await prometheus_process.PrometheusServer(home, program, 1).start()
        finally:
            await prometheus_process.stop(home)

    with ThreadingHTTPServer(("127.0.0.1", 0), Another) as other:
        threading.Thread(target=other.serve_forever).start()
        try:
            assert asyncio.run(played(other.server_port)) not in ("", f"http://127.0.0.1:{other.server_port}")
        finally:
            other.shutdown()


@pytest.mark.parametrize(
    ("last_s", "lived_s", "pause_s"), [(2.0, 0.1, 4.0), (4.0, 59.0, 8.0), (256.0, 1.0, 300.0), (300.0, 61.0, 2.0)]
)
def test_one_that_ends_at_once_is_started_ever_less_often(last_s: float, lived_s: float, pause_s: float) -> None:
    assert prometheus_process.next_pause(last_s, lived_s) == pause_s
