"""A target of a cloud in a home of its own, in place of `tests.embedded.Platform`: there is no control process."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

from tests.daemons.installed_programs import install
from tests.embedded import FLOWER, IRIS, Platform
from tests.eventually import eventually
from tests.http_reply import Reply
from tests.platform.targets.target_contract import KEY, TargetGround

from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare
from pilotlight.release.plan_and_render import Sources, read
from pilotlight.targets import table
from pilotlight.targets.remote.endpoint_target import EndpointTarget
from pilotlight.targets.target import Key, ServiceStatus
from pilotlight.wire.http_client import HttpClient

PAUSE_S = 0.2  # a look is some programs


@dataclass
class RemotePlatform:
    """`env` is that of the command, as a user's shell has it."""

    name: str
    env: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> EndpointTarget:
        return cast(EndpointTarget, table.connect(self.name, self.env, options=self.options))

    def deploy(self, document: str, *, reset: bool = False, note: str = "", **how: Any) -> ServiceStatus:
        target = self.target
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(document)
            file.flush()
            documents = read(Sources([file.name]))
        request = ReleaseRequest(documents, replace(Capabilities(), **target.capabilities()), reset=reset, note=note)
        (prepared,), _ = prepare(request, target)
        return target.apply(prepared.release, reset=reset, **how)

    def status(self) -> ServiceStatus:
        return self.target.status(KEY)

    def wait_phase(self, *phases: str, seconds: float = 60.0) -> ServiceStatus:
        self.wait(lambda: self.status().phase in phases, f"to be {phases}", seconds)
        return self.status()

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        eventually(condition, lambda: f"{what}: {self.target.list(None)}", seconds, pause_s=PAUSE_S)

    def ask(self, path: str = "/v2/models/iris/infer") -> Reply:
        with self.target.open_route(self.status()) as route, HttpClient(route.url, 60, route.headers) as client:
            reply = client.request("POST", path, json.dumps(FLOWER).encode(), {"Content-Type": "application/json"})
            return Reply(reply.status, reply.headers, reply.body)

    def events(self, key: Key | None = None) -> list[str]:
        return [f"{event.reason}: {event.message}" for event in self.target.events(key, follow=False)]


class RemoteGround(TargetGround):
    """Without a gateway a service has a number of replicas and nothing that scales it."""

    def document(self, least: int = 1, predictor: str = "", model: str = "", uri: str = "") -> str:
        text = super().document(least, predictor, model, uri)
        return text.replace("    maxReplicas: 3\n", "", 1)


def remote_ground(platform: RemotePlatform, replicas: Callable[[], list[str]], model: str) -> RemoteGround:
    return RemoteGround(cast(Platform, platform), model, replicas, wakes=False)


@contextmanager
def model_server() -> Iterator[str]:
    """The URI of the iris model, on loopback: plain HTTP is refused elsewhere."""
    handler = partial(_Quiet, directory=str(IRIS.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{IRIS.name}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def environment(folder: Path, *programs: str, **variables: str) -> dict[str, str]:
    """With stand-ins of these programs in front, and a home of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("INFERENCE_", "PILOTLIGHT_"))}
    path = f"{install(folder / 'bin', *programs)}:{Path(sys.executable).parent}:{clean['PATH']}"
    return {**clean, "PATH": path, "PILOTLIGHT_HOME": str(folder / "home"), **variables}
