"""The embedded platform as it is used: a control process, a gateway and real predictors, in a home of its own.

`Platform` starts them on free ports and leaves nothing behind. Documents are deployed the way `platformctl` does it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.eventually import eventually
from tests.http_reply import Reply
from tests.ports import free_port

from pilotlight.errors import NotFound
from pilotlight.k8s.model_pins import is_local, local_path
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.model_pins import check_models, with_pins
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.client import LocalTarget
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.target import Key, ServiceStatus

ROOT = Path(__file__).resolve().parents[1]
IRIS = ROOT / "examples" / "iris" / "model.onnx"
FLOWER = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}
PATIENCE_S = 60.0  # a busy machine is slow
LAST_S = 30.0  # a shim lives a moment longer than the note of its replica's end, for which the control process waited


class Platform:
    """`env` goes to the control process, and from there to whatever it starts; `name` is the target of deploys."""

    def __init__(
        self, folder: Path, env: Mapping[str, str] | None = None, flags: tuple[str, ...] = (), *,
        name: str = "local", options: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.home = Home(folder)
        self.name, self.options = name, options or {}
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("INFERENCE_", "PILOTLIGHT_"))
        }
        self.env = {**clean, "PILOTLIGHT_HOME": str(folder), "PILOTLIGHT_PILOT_LIGHT": "off", **(env or {})}
        ports = ("--gateway-port", str(free_port()), "--api-port", str(free_port()))
        self.flags = (*ports, "--service-ports", "0", *flags)
        self.process: subprocess.Popen[bytes] | None = None
        self.gateway_port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self.home.create()
        with open(self.home.logs / "daemon.log", "ab", opener=partial(os.open, mode=0o600)) as log:
            command = [
                sys.executable,
                "-m",
                "pilotlight.control_plane.daemon",
                "--home",
                str(self.home.root),
                *self.flags,
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=self.env)
        self.wait(lambda: self.answers(), "the control process to answer")
        self.gateway_port = self.address.gateway_port

    def answers(self) -> bool:
        found = control_process_launcher.living(self.home)
        return found is not None and control_process_launcher.answers(found, PATIENCE_S)

    @property
    def address(self) -> control_process_launcher.Address:
        found = control_process_launcher.living(self.home)
        if found is None:
            raise NotFound(f"no control process lives:\n{self.log()}")
        return found

    @property
    def target(self) -> LocalTarget:
        return LocalTarget(self.address, self.name, self.options)

    def log(self) -> str:
        texts = [file.read_text(errors="replace")[-4000:] for file in sorted(self.home.logs.glob("*.log"))]
        return "\n".join(texts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        address = control_process_launcher.living(self.home)
        if address is not None:
            connection = HTTPConnection("127.0.0.1", address.port, timeout=PATIENCE_S)
            headers = {"Authorization": f"Bearer {address.token}"}
            with suppress(OSError, HTTPException):  # one that ends already does not answer
                connection.request("POST", "/api/v1/shutdown", json.dumps({"drain_s": 5.0}), headers)
                connection.getresponse().read()
            connection.close()
            control_process_launcher.wait_exit(address, PATIENCE_S)
        if self.process is not None:
            self.process.wait(PATIENCE_S)
        until = time.monotonic() + LAST_S
        while (left := processes_of(self.home)) and time.monotonic() < until:
            time.sleep(0.02)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left or error is not None, f"left behind: {left}\n{self.log()}"

    def kill_control(self) -> None:
        """kill -9; its parent process starts it again."""
        os.kill(self.address.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(PATIENCE_S)
            self.process = None

    def deploy(self, document: str, *, reset: bool = False, note: str = "", **how: Any) -> ServiceStatus:
        """As `platformctl deploy` does it, without waiting."""
        (prepared,), _ = prepare(self.release_request(document, reset=reset, note=note), self.target)
        return self.target.apply(prepared.release, reset=reset, **how)

    def release_request(self, document: str, *, reset: bool = False, note: str = "") -> ReleaseRequest:
        target = self.target
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(document)
            file.flush()
            documents = read(Sources([file.name]))
        capabilities = replace(Capabilities(), **target.capabilities())
        snapshots = ModelSnapshots(self.home.models)
        uris = [uri for uri in check_models(documents, capabilities, here=False, note=print) if is_local(uri)]
        pins = {uri: snapshots.pin(local_path(uri), snapshot=True) for uri in uris if os.path.exists(local_path(uri))}
        return ReleaseRequest(with_pins(documents, pins), capabilities, reset=reset, note=note)

    def status(self, name: str = "iris", namespace: str = "default") -> ServiceStatus:
        return self.target.status((namespace, name))

    def wait_phase(self, *phases: str, name: str = "iris", seconds: float = PATIENCE_S) -> ServiceStatus:
        seen: list[ServiceStatus] = []

        def reached() -> bool:
            seen[:] = [self.status(name)]
            return seen[0].phase in phases

        self.wait(reached, f"{name} to be {' or '.join(phases)}", seconds)
        return seen[0]

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        def check() -> None:
            if self.process is not None and self.process.poll():
                raise AssertionError(f"the control process ended while waiting for {what}:\n{self.log()}")

        eventually(condition, lambda: f"{what}:\n{self._seen()}\n{self.log()}", seconds, pause_s=0.02, check=check)

    def _seen(self) -> str:
        try:
            return "\n".join(str(status) for status in self.target.list(None))
        except Exception as error:
            return str(error)

    def ask(
        self, path: str = "/iris/v2/models/iris/infer", body: Any = FLOWER, *, headers: Mapping[str, str] | None = None,
        timeout: float = 60.0, method: str = "",
    ) -> Reply:  # fmt: skip
        """One request on a connection of its own, through the gateway."""
        connection = HTTPConnection("127.0.0.1", self.gateway_port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method or ("POST" if data else "GET"), path, data, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def replicas(self) -> list[int]:
        """Process ids of predictors that belong to this platform, without the shims that note their ends."""
        found = [(pid, command.rstrip("\0 ").split("\0")) for pid, command in commands_of(self.home)]
        return [pid for pid, words in found if "pilotlight_predictor" in words and "python" in words[0]]

    def empty(self) -> None:
        """Without services, as it was at first."""
        for status in self.target.list(None):
            with suppress(NotFound):  # one that a test has deleted may end in between
                self.target.delete((status.namespace, status.name))
        self.wait(lambda: not self.target.list(None) and not self.replicas(), "every service to be gone")

    def events(self, key: Key | None = None) -> list[str]:
        return [f"{event.reason}: {event.message}" for event in self.target.events(key, follow=False)]


def processes_of(home: Home) -> list[int]:
    """What is left running. The shell that notes the end of a replica ends a moment after it, and is waited for."""
    until = time.monotonic() + PATIENCE_S
    while (found := list(commands_of(home))) and all("pilotlight-shim" in command for _, command in found):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return [pid for pid, _ in found]


def commands_of(home: Home) -> Iterator[tuple[int, str]]:
    """Living processes whose environment or command line names this home."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environ, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        marked = f"PILOTLIGHT_HOME={home.root}".encode() + b"\0"
        if not zombie and (marked in environ or str(home.root).encode() in command):
            yield int(folder.name), command.decode(errors="replace")


def inference_service(
    name: str, form: str, uri: str, *, least: int, most: int, annotations: str = "", predictor: str = "",
    model: str = "",
) -> str:  # fmt: skip
    """A document with a short window; what else it shall say is given as lines, indented as they stand."""
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  annotations:
    autoscaling.knative.dev/window: 6s
{annotations}
spec:
  predictor:
    minReplicas: {least}
    maxReplicas: {most}
{predictor}
    model:
      modelFormat: {{name: {form}}}
      protocolVersion: v2
      storageUri: {uri}
{model}
"""


def serverless(name: str = "iris", uri: str = "", extra: str = "", annotations: str = "") -> str:
    return inference_service(
        name, "onnx", uri or IRIS.as_uri(), least=0, most=3, annotations=annotations, predictor=extra
    )


@contextmanager
def load(platform: Platform, path: str = "/iris/v2/models/iris/infer", clients: int = 4) -> Iterator["Load"]:
    """Clients that ask without pause until the block ends; each on a connection that it keeps."""
    running = Load(platform.address.gateway_port, path, clients)
    try:
        yield running
    finally:
        running.stop()


class Load:
    def __init__(self, port: int, path: str, clients: int) -> None:
        import threading

        self.answers: list[tuple[int, str]] = []
        self._ending = threading.Event()
        self._port, self._path = port, path
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        body = json.dumps(FLOWER)
        while not self._ending.is_set():
            try:
                connection.request("POST", self._path, body)
                response = connection.getresponse()
                text = response.read()
                self.answers.append((response.status, "" if response.status == 200 else text.decode()))
            except (OSError, HTTPException) as error:
                self.answers.append((0, f"{type(error).__name__}: {error}"))
                connection.close()
        connection.close()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> list[tuple[int, str]]:
        return [answer for answer in self.answers if answer[0] != 200]
