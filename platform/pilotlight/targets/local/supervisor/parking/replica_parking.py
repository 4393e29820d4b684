"""Parks and wakes replicas, each by its method: our predictor's, its engine's, or the driver's for any other process.

Replicas of the first two keep their CUDA context, which the driver takes when their GPU is needed. After a wake they
must answer a known request as before (known_answer.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final
from urllib.parse import quote

from pilotlight.catalogue.engine_programs import engine_command
from pilotlight.contract import ENV_EXAMPLE, is_predictor_image
from pilotlight.k8s.quantities import mebibytes
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.supervisor import process_inspection
from pilotlight.targets.local.supervisor.parking import known_answer, self_parking
from pilotlight.targets.local.supervisor.parking.checkpoint_process import CheckpointProcess
from pilotlight.targets.local.supervisor.parking.cuda_checkpoint import (
    CheckpointError,
    DriverMissing,
    LockTimeout,
    NoContext,
    OutOfMemory,
)
from pilotlight.targets.local.supervisor.parking.self_parking import ParkResult
from pilotlight.targets.local.supervisor.replica_record import Parking, Replica

POLL_S: Final = 0.05
Processes = Callable[[], Sequence[int]]  # pids of a replica, its first process first
PASSING: Final = (LockTimeout, OutOfMemory)  # errors that say nothing about another time


def parking_of(container: ContainerSpec, service: str) -> Parking:
    """Return how a replica of this container parks, and its known request."""
    if not container.parks:
        return Parking()
    size = sum(pin.size for pin in container.pins.values())
    if is_predictor_image(container.image):
        example = container.env.get(ENV_EXAMPLE, "")
        name = quote(service, safe="")
        path = f"/v1/models/{name}:predict" if '"instances"' in example else f"/v2/models/{name}/infer"
        return Parking("predictor", path=path if example else "", body=example, model_bytes=size)
    named = engine_command(container.image, container.command, container.args)
    if named is not None and named.sleeps is not None:
        return Parking("engine", named.engine.name, model_bytes=size)
    return Parking("driver", model_bytes=size)


class ReplicaParking:
    """Used from one event loop. `token` is that of our predictors' admin calls; `budget` of host memory, in bytes."""

    def __init__(self, token: Callable[[], str], budget: Callable[[], int]) -> None:
        self._token, self._budget = token, budget
        self._driver = CheckpointProcess()

    async def park(self, replica: Replica, processes: Processes, gpu_bytes: int) -> ParkResult:
        """Free the GPU memory of an idle replica, `gpu_bytes` as far as they are known.

        The driver parks what does not park by itself; if it cannot either, the first error is the result.
        """
        method, own = replica.parking.method, ParkResult()
        if method == "driver" and (error := self._lacks_memory(replica, processes, gpu_bytes)):
            return ParkResult(error=error, never=True)
        if method != "predictor" and not await _is_idle(replica):
            return ParkResult(error=f"requests were in flight for {replica.checks.grace_s:g} s")
        answer = await known_answer.learn(replica)
        if method == "predictor":
            own = await self_parking.park_predictor(replica, self._token())
        elif method == "engine":
            own = await self._sleep(replica, processes)
        elif method == "driver":
            return await self._checkpoint(replica, processes, gpu_bytes, answer)
        if not own.error:
            return own._replace(known_answer=answer)
        if replica.gpus and not self._lacks_memory(replica, processes, gpu_bytes) and await _is_idle(replica):
            result = await self._checkpoint(replica, processes, gpu_bytes, answer)
            return own if result.error else result
        return own

    def _lacks_memory(self, replica: Replica, processes: Processes, size: int) -> str:
        limit, budget = replica.checks.memory_limit, self._budget()
        if size > budget:
            host = f"parked replicas may use {mebibytes(budget)} of host memory"
            return f"it uses {mebibytes(size)} of GPU memory, and {host}"
        if limit is not None and resident(processes) + size > limit:
            return f"it uses {mebibytes(size)} of GPU memory; raise resources.limits.memory by as much"
        return ""

    async def _checkpoint(self, replica: Replica, processes: Processes, size: int, answer: str) -> ParkResult:
        before = resident(processes)
        try:
            await self._driver.call("checkpoint", processes())
        except CheckpointError as error:
            return ParkResult(error=described(error), never=not isinstance(error, PASSING))
        held = max(size, resident(processes) - before, 0)
        return ParkResult(held, checkpointed=True, known_answer=answer)

    async def _sleep(self, replica: Replica, processes: Processes) -> ParkResult:
        before, size = resident(processes), replica.parking.model_bytes
        discard = size > self._budget()
        if error := await self_parking.sleep_engine(replica, discard=discard):
            return ParkResult(error=error, never=True)
        held = 0 if discard else max(size, resident(processes) - before, 0)
        return ParkResult(held, discarded=discard)

    async def free_context(self, processes: Processes) -> str | None:
        """Take the CUDA context of a parked replica; return why the driver refuses, None: there is nothing to take."""
        try:
            await self._driver.call("checkpoint", processes())
        except (DriverMissing, NoContext):
            return None
        except CheckpointError as error:
            return described(error)
        return ""

    async def wake(self, replica: Replica, processes: Processes) -> str:
        """Put a parked replica back on its GPUs; return why it does not serve as before, empty: it does."""
        if replica.checkpointed or replica.parking.method == "driver":
            try:
                await self._driver.call("restore", processes())
            except CheckpointError as error:
                return described(error)
        if replica.parking.method == "engine" and (problem := await self_parking.wake_engine(replica)):
            return problem
        if replica.known_answer and await known_answer.answer_of(replica) != replica.known_answer:
            return "its response to a known request is not the one from before it was parked"
        return ""

    async def close(self) -> None:
        await self._driver.close()


def resident(processes: Processes) -> int:
    return process_inspection.usage(pids[0]).resident_bytes if (pids := processes()) else 0


def described(error: CheckpointError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


async def _is_idle(replica: Replica) -> bool:
    """Wait for requests that were routed before the table changed: the gateway closes its connections after them."""
    until = monotonic() + replica.checks.grace_s
    while process_inspection.connections_to(replica.port, replica.host):
        if monotonic() > until:
            return False
        await asyncio.sleep(POLL_S)
    return True
