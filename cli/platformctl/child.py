"""A predictor run as a child of this program: started on a free port, watched until it is ready, stopped.

Used by `demo`. Standard library only: the child's own cold start is what the user is waiting for.
"""

import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from pilotlight.errors import PlatformError, TimedOut

LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


class Child:
    """One predictor process. A thread reads its log, so that a full pipe never stops it."""

    def __init__(self, command: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        environ = {**os.environ, "INFERENCE_LOG_FORMAT": "json"}
        self.clock = clock
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.port = 0
        self.listening = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)  # noqa: S603 - no shell
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.connection: HTTPConnection | None = None

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.lines.append(line.rstrip())
                if '"listening"' in line:
                    self.port = int(_fields(line).get("http_port", 0))
                    self.listening.set()
        self.listening.set()

    def wait_ready(self, deadline: float, progress: Callable[[str], None]) -> dict[str, Any]:
        """Polls until every required model has answered; the final /status. `progress` hears each state once."""
        self._wait_listening(deadline)
        seen = ""
        while True:
            status = self._status()
            if status.get("state", "") != seen:
                seen = str(status.get("state", ""))
                progress(seen)
            if seen == "failed":
                raise PlatformError(
                    f"the predictor could not load its models: {status.get('reason', 'no reason given')}"
                )
            if seen == "ready":
                return status
            self._check(deadline)
            time.sleep(0.01)

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection that is kept open."""
        if self.connection is None:
            self.connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        start = self.clock()
        self.connection.request(method, path, body or None, headers or {})
        response = self.connection.getresponse()
        content = response.read()
        taken = self.clock() - start
        return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, content, taken)

    def stop(self, timeout: float = 35.0) -> int:
        """SIGTERM, which drains; SIGKILL when that takes too long."""
        self._hang_up()
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        return self.process.returncode

    def _wait_listening(self, deadline: float) -> None:
        if self.listening.wait(max(0.0, deadline - self.clock())) and not self.port:
            with suppress(subprocess.TimeoutExpired):  # its log has ended, so it is about to
                self.process.wait(5)
        self._check(deadline)

    def _status(self) -> dict[str, Any]:
        try:
            reply = self.request("GET", "/status")
        except (OSError, HTTPException):
            self._hang_up()
            return {}
        return _fields(reply.body.decode())

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def _check(self, deadline: float) -> None:
        """Raises when the process has ended or time is up, with the end of its log."""
        tail = "\n".join(self.lines)
        if self.process.poll() is not None:
            self.reader.join()
            raise PlatformError(f"the predictor ended with code {self.process.returncode}:\n" + "\n".join(self.lines))
        if self.clock() >= deadline:
            raise TimedOut(f"the predictor is not ready; the end of its log:\n{tail}", "give it longer: --timeout")
        if self.listening.is_set() and not self.port:
            raise PlatformError(f"the predictor did not say where it listens:\n{tail}")


def _fields(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
