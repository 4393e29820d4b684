"""A supervisor in a home of its own, and everything that it told: what the tests of this folder play on.

Replicas are real processes: the predictor with the iris model, or a few lines of shell in place of Python.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.eventually import eventually_async

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Probe, RevisionSpec
from pilotlight.targets.local.scaling.types import Fixed
from pilotlight.targets.local.supervisor.process_inspection import replica_processes
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch, Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[5]
IRIS = {"INFERENCE_MODEL_PATH": str(ROOT / "examples/iris/model.onnx"), "INFERENCE_MODEL_NAME": "iris"}
READY = Probe("/v2/health/ready", 8080)
WAIT_S = 60.0  # a busy machine imports slowly


def launch(
    replica: str = "iris-predictor-1f3a9c07-x7k2q",
    env: Mapping[str, str] | None = None,
    service: str = "iris",
    deadline_s: float = 600.0,
    **container: Any,
) -> Launch:
    fields: dict[str, Any] = {"image": "pilotlight/predictor:0.1.0", "command": (), "args": (), "readiness": READY}
    made = ContainerSpec(name="main", env=IRIS if env is None else env, port=8080, **(fields | container))
    name = f"{service}-predictor"
    revision = RevisionSpec(
        "default", service, name, "predictor", f"{name}-1f3a9c07", made, Fixed(1), progress_deadline_s=deadline_s
    )
    return Launch(replica, revision)


class Stage:
    """Ends every process of its home when it is left."""

    def __init__(self, folder: Path, **supervisor: Any) -> None:
        self.home = Home(folder / "home").create()
        self.told: list[Replica] = []
        self._arguments = supervisor

    async def __aenter__(self) -> Self:
        of_processes = {name: self._arguments[name] for name in ("pilot", "python") if name in self._arguments}
        of_supervisor = {name: self._arguments[name] for name in self._arguments.keys() - of_processes.keys()}
        processes = ProcessLauncher(self.home, "http://127.0.0.1:8090", **of_processes)
        self.supervisor = Supervisor(self.home, self.told.append, processes, **of_supervisor)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for replica in self.supervisor.replicas():
            self.supervisor.drain(replica.id, 0.0)
        try:
            await asyncio.wait_for(self.supervisor.close(leave_running=False), WAIT_S)
        finally:
            for pid, _ in replica_processes(self.home):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)

    def states(self) -> list[str]:
        """As they followed one another."""
        states = [replica.state for replica in self.told]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] != state]

    async def until(self, state: str, replica: str = "") -> Replica:
        """The first that was told of in that state."""

        def found() -> Replica | None:
            mine = [told for told in self.told if replica in ("", told.id)]
            seen = next((told for told in mine if told.state == state), None)
            assert seen or not mine or mine[-1].state != "exited", mine[-1].reason
            return seen

        await eventually_async(
            lambda: found() is not None,
            lambda: f"{state}; told were {[(told.state, told.reason) for told in self.told]}",
        )
        answer = found()
        assert answer is not None
        return answer

    async def start(self, order: Launch) -> Replica:
        self.supervisor.launch(order)
        return await self.until("ready", order.replica)


def program(folder: Path, script: str) -> str:
    """An executable in place of Python: what a replica runs instead of the predictor."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def lines(log: str) -> Sequence[str]:
    return Path(log).read_text().splitlines()
