"""`pilotlight.test`: a model in the real predictor, as a process of its own on a unix socket, for unit tests."""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.sdk.model_folder import served_model, with_hint
from pilotlight.wire.http_client import FAILURES, HttpClient

if TYPE_CHECKING:
    from pilotlight.client import InferResult

PORT: Final = 8080
POLL_S: Final = 0.01
STOP_S: Final = 10.0


class LocalPredictor:
    """A predictor of one model. Use it as a context manager; `infer` is that of a Client.

    A model that does not load, and an exception of its code, are errors with its traceback as a note.
    """

    def __init__(self, served: Any, name: str, timeout: float) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotlight-"))
            self.url, self._log = f"unix:{folder}/{PORT}", Path(folder, "log")
            try:
                model = served_model(served, Path(folder, "sources"))
            except UsageError as error:
                raise with_hint(error) from None
            command = [sys.executable, "-m", "pilotlight_predictor", "--http-address", f"unix:{folder}"]
            command += ["--http-port", str(PORT), "--grpc-port=-1", "--metrics-port=-1", "--log-format=json"]
            command += ["--model-path", str(model.path), "--model-name", name]
            command += ["--model-parameter", f"class={model.name}", "--exit-on-error"]
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
            stack.callback(self._stop)
            self._wait_ready(timeout)
            from pilotlight.client import Client

            self.client = stack.enter_context(Client(self.url))
            self._resources = stack.pop_all()

    def infer(self, *arguments: Any, **options: Any) -> "InferResult":
        """Send a request as `Client.infer` does."""
        try:
            return self.client.infer(*arguments, **options)
        except PlatformError as error:
            if getattr(error, "status", 0) >= 500:
                self._with_traceback(error)
            raise

    def close(self) -> None:
        """End the predictor; `finalize` of the model has been called then."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with HttpClient(self.url, 1.0) as client:
            while self._process.poll() is None:
                with suppress(*FAILURES):
                    if client.request("GET", "/v2/health/ready").status == 200:
                        return
                if time.monotonic() > deadline:
                    log = self._log.read_text(errors="replace")[-2000:]
                    raise TimedOut(f"the model did not load within {timeout:g} s, a longer timeout= may help: {log}")
                time.sleep(POLL_S)
        reasons = [str(line.get("message")) for line in self._lines() if line.get("level") == "ERROR"]
        raise self._with_traceback(PlatformError((reasons or [self._log.read_text(errors="replace")])[-1]))

    def _with_traceback(self, error: PlatformError) -> PlatformError:
        """Add the latest traceback of the model in the log."""
        for line in reversed(self._lines()):
            if text := line.get("traceback"):
                error.add_note(text)
                break
        return error

    def _lines(self) -> list[dict[str, Any]]:
        text = self._log.read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def test(served: Any, *, name: str = "model", timeout: float = 60.0) -> LocalPredictor:  # noqa: PT028 - no test itself
    """Serve a class, function or instance as `deploy` would, without a port: `with pilotlight.test(Digits) as digits`.

    `name` of the model; `timeout` in seconds until it is loaded.
    """
    return LocalPredictor(served, name, timeout)


test.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's
