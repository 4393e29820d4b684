"""A child that behaves, and children that do not: each misbehaviour is told with the end of the child's log."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotlight.errors import PlatformError, TimedOut
from platformctl.child import Child

SERVER = """
import http.server, json, sys
STATES = {states!r}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        state = STATES.pop(0) if len(STATES) > 1 else STATES[0]
        body = json.dumps({{"state": state, "reason": "no such model", "phases": {{"boot": 0.5}}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("noise " * 30000, file=sys.stderr)
print(json.dumps({{"event": "listening", "http_port": server.server_port}}), file=sys.stderr, flush=True)
server.serve_forever()
"""
# Answers the first connection with nonsense, and no other until that one is closed.
BROKEN_AT_FIRST = """
class Once(http.server.HTTPServer):
    seen = False
    def finish_request(self, request, address):
        if self.seen:
            return super().finish_request(request, address)
        self.seen = True
        request.recv(65536)
        request.sendall(b"no HTTP\\r\\n")
        request.recv(65536)
server = Once"""
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Child] = []

    def run(script: str) -> Child:
        (tmp_path / "child.py").write_text(script)
        started.append(Child([sys.executable, str(tmp_path / "child.py")]))
        return started[-1]

    yield run
    for child in started:
        child.stop()


def soon() -> float:
    return time.monotonic() + 30


def test_each_state_is_heard_once_until_ready(start: Start) -> None:
    child = start(SERVER.format(states=["initializing", "loading", "loading", "ready"]))
    heard: list[str] = []
    status = child.wait_ready(soon(), heard.append)
    assert heard == ["initializing", "loading", "ready"]
    assert status["phases"] == {"boot": 0.5}


def test_a_failed_load_is_told_with_its_reason(start: Start) -> None:
    child = start(SERVER.format(states=["loading", "failed"]))
    with pytest.raises(PlatformError, match="no such model"):
        child.wait_ready(soon(), lambda _: None)


def test_a_child_that_dies_is_told_with_its_code_and_last_words(start: Start) -> None:
    child = start("import sys; print('out of luck', file=sys.stderr); sys.exit(3)")
    with pytest.raises(PlatformError, match=r"code 3:\nout of luck"):
        child.wait_ready(soon(), lambda _: None)


def test_a_connection_that_breaks_is_closed_and_another_one_tried(start: Start) -> None:
    child = start(SERVER.replace("\nserver = http.server.HTTPServer", BROKEN_AT_FIRST).format(states=["ready"]))
    assert child.wait_ready(soon(), lambda _: None)["state"] == "ready"


def test_a_child_that_is_never_ready_times_out(start: Start) -> None:
    child = start(SERVER.format(states=["loading"]))
    child.listening.wait(30)
    with pytest.raises(TimedOut, match="listening"):
        child.wait_ready(time.monotonic() + 0.1, lambda _: None)


def test_a_child_that_never_listens_times_out(start: Start) -> None:
    child = start("import signal; signal.pause()")
    with pytest.raises(TimedOut):
        child.wait_ready(time.monotonic() + 0.1, lambda _: None)


def test_stop_ends_the_process(start: Start) -> None:
    child = start(SERVER.format(states=["ready"]))
    child.wait_ready(soon(), lambda _: None)
    child.stop()
    assert child.process.poll() is not None


def test_a_child_that_ignores_the_signal_is_killed(start: Start) -> None:
    deaf = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('deaf', file=sys.stderr, flush=True);"
    child = start(deaf + "signal.pause()")
    while not child.lines:
        assert child.process.poll() is None
        time.sleep(0.01)
    assert child.stop(timeout=0.2) == -9
