"""Process that keeps CUDA initialised and checkpoints others (cuda_checkpoint.py), and its client.

A driver call may hang or crash; in a process of its own it takes no thread of the control process, and CUDA is
initialised once, with the first replica that parks. It shortens no call (bench/gpu/park_any.py). Requests and replies
are lines of JSON on stdin and stdout; the process exits at the end of stdin, once all calls have returned.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, Final, Literal

from pilotlight.targets.local.supervisor.parking import cuda_checkpoint
from pilotlight.targets.local.supervisor.parking.cuda_checkpoint import CheckpointError, Driver, Seconds

Action = Literal["checkpoint", "restore"]
ACTIONS: Final[dict[str, Callable[[Driver, Sequence[int]], Seconds]]] = {
    "checkpoint": cuda_checkpoint.checkpoint_all,
    "restore": cuda_checkpoint.restore_all,
}
CLOSE_S: Final = 5.0
_ERRORS: Final[list[type[CheckpointError]]] = [CheckpointError, *CheckpointError.__subclasses__()]
_KINDS: Final = {kind.__name__: kind for kind in _ERRORS}


class CheckpointProcess:
    """Starts the process with the first call, and again after its end; used from one event loop."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = count()
        self._starting = asyncio.Lock()

    async def call(self, action: Action, pids: Sequence[int]) -> Seconds:
        """Checkpoint or restore the processes of a replica. Raise CheckpointError.

        Calls with the same first pid run one after the other, cancelled ones included.
        """
        process = await self._running()
        number, reply = next(self._ids), asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": number, "action": action, "pids": list(pids)}).encode() + b"\n")
            await process.stdin.drain()
            answer = await reply
        except ConnectionError:
            raise CheckpointError("the helper process that calls the driver has exited") from None
        finally:
            self._replies.pop(number, None)
        if "error" in answer:
            raise _KINDS[answer["kind"]](answer["error"], answer["name"])
        return {name: float(seconds) for name, seconds in answer["seconds"].items()}

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                pipe = asyncio.subprocess.PIPE
                command = [sys.executable, "-m", __spec__.name]
                self._process = await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, start_new_session=True
                )
                self._reader = asyncio.get_running_loop().create_task(self._read(self._process))
            return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = json.loads(line)
                if (reply := self._replies.get(answer["id"])) is not None and not reply.done():
                    reply.set_result(answer)
        finally:
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(ConnectionResetError())

    async def close(self) -> None:
        """End the process; a call that is under way is finished first, by itself."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
        self._process = None


def serve() -> None:
    """Answer requests until stdin ends; those of one replica in order, in a thread of its own."""
    output, threads = Lock(), dict[int, ThreadPoolExecutor]()
    driver: Driver | CheckpointError
    try:
        driver = Driver()
        driver.initialize()
    except CheckpointError as error:
        driver = error

    def answer(request: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            if isinstance(driver, CheckpointError):
                raise driver
            began = perf_counter()
            seconds = ACTIONS[request["action"]](driver, request["pids"])
            reply = {"seconds": {**seconds, "total": perf_counter() - began}}
        except CheckpointError as error:
            reply = {"error": str(error), "name": error.name, "kind": type(error).__name__}
        with output:
            sys.stdout.write(f"{json.dumps({'id': request['id'], **reply})}\n")
            sys.stdout.flush()

    for line in sys.stdin:
        request = json.loads(line)
        for pid in [pid for pid in threads if not os.path.exists(f"/proc/{pid}")]:
            threads.pop(pid).shutdown(wait=False)
        threads.setdefault(request["pids"][0], ThreadPoolExecutor(1)).submit(answer, request)


if __name__ == "__main__":
    serve()
