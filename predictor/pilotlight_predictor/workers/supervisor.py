"""Supervisor of the workers: bind the ports, start, replace and stop workers, and fan out requests to them.

It holds every listening socket, so that connections in the backlog of a worker that exits are accepted by another. It
serves nothing itself and imports nothing that models need.
"""

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from pilotlight.wire.unix_socket import is_unix
from pilotlight_predictor.config import Settings
from pilotlight_predictor.frontends.http.server import bind, listening_message, port_number
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn, wait_for_event
from pilotlight_predictor.observability.logs import configure, log
from pilotlight_predictor.workers.aggregation import EOF, TIMED_OUT, first_failure, merge, retained_counters
from pilotlight_predictor.workers.model_control import WorkerAdmin
from pilotlight_predictor.workers.parent_channel import Frame, WorkerResponse
from pilotlight_predictor.workers.supervisor_policy import wait_before_restart
from pilotlight_predictor.workers.worker import BUCKETS_BYTES
from pilotlight_predictor.workers.worker_handle import (
    PATIENCE_S,
    WorkerHandle,
    distribute_sockets,
    request_all,
    share_states,
    start,
)

BEYOND_S: Final = 10.0  # beyond the drain timeouts, for freeing models
ABORT_S: Final = 2.0
TOGETHER_S: Final = 0.03  # so that workers that stop at the same moment do not get each other's sockets


def run(settings: Settings, argv: Sequence[str], supervisor: "type[WorkerSupervisor] | None" = None) -> int:
    """Run until a signal or a failed start has ended all workers; return the exit code."""
    logs = settings.observability
    configure(logs.log_level.upper(), logs.log_format, file=logs.log_file)  # type: ignore[arg-type]
    for warning in settings.warnings:
        log("setting", warning, level="WARNING")
    server, count = settings.server, settings.server.fronts or settings.server.workers
    try:
        http = bind_several(server.host, server.http_port, count)
        metrics = bind(server.metrics_host or server.host, server.metrics_port) if server.metrics_port >= 0 else None
        rpc_host = server.grpc_host or server.host
        rpc = bind(rpc_host, server.grpc_port) if is_unix(rpc_host) and server.grpc_port > 0 else None
    except OSError as error:
        log("failed", f"cannot listen on {error}", level="ERROR")
        return 1
    kind = "fronts" if server.fronts else "workers"
    where = f"{listening_message(http[0], server.host, tls=bool(server.tls_cert))} with {count} {kind}"
    http_port, metrics_port = port_number(http[0]), port_number(metrics) if metrics else None
    fields: dict[str, Any] = {kind: count, "http_port": http_port, "metrics_port": metrics_port}
    log("listening", where, host=server.host, **fields)
    return asyncio.run((supervisor or WorkerSupervisor)(settings, argv, http, metrics, rpc).run())


def bind_several(host: str, port: int, sockets: int) -> list[socket.socket]:
    """Return listening sockets of one port, over which the kernel spreads connections. Raise OSError if it is taken.

    Those of a `unix:` host have one backlog, from which each worker accepts when it has time.
    """
    if is_unix(host):
        shared = bind(host, port)
        return [shared, *(shared.dup() for _ in range(sockets - 1))]
    with bind(host, port) as exclusive:  # with SO_REUSEPORT alone, a port shared by another server could be bound
        port = exclusive.getsockname()[1]
    return [bind(host, port, shared=True) for _ in range(sockets)]


class WorkerSupervisor:
    """Parent process of the workers."""

    def __init__(
        self,
        settings: Settings,
        argv: Sequence[str],
        http: list[socket.socket],
        metrics: socket.socket | None,
        rpc: socket.socket | None,
    ) -> None:
        self._settings = settings
        self._argv = argv
        self._http = http
        self._metrics, self._rpc = metrics, rpc
        self._buckets = os.memfd_create("rate-limits")
        os.truncate(self._buckets, BUCKETS_BYTES)
        self._workers: dict[int, WorkerHandle] = {}
        self._restarts: Counter[int] = Counter()
        self._departed = ""  # counters of workers that have exited
        self._admin = WorkerAdmin()
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._served = False  # whether any worker has ever been ready
        self._waiting = False  # whether a ready worker waits for another to release a socket
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        runs = [loop.create_task(self._run_worker(number)) for number in range(self.processes)]
        await self._stop.wait()
        # Ready workers get their sockets without waiting for a release, or no worker would accept from those; leaving
        # workers keep theirs.
        staying = {number: worker for number, worker in self._workers.items() if not worker.leaving}
        distribute_sockets(len(self._http), share_states(self.accepting(staying)), monotonic(), wait=False)
        await self.stop(runs)
        log("stopped", "all workers have exited", code=self._code)
        return self._code

    @property
    def processes(self) -> int:
        return len(self._http)

    def accepting(self, workers: Mapping[int, WorkerHandle]) -> Mapping[int, WorkerHandle]:
        """Return those of the workers that accept connections."""
        return workers

    async def stop(self, runs: "Sequence[asyncio.Task[None]]") -> None:
        self._send_to_all("stop")
        await self._wait_for_exit(runs)

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()

    def _send_to_all(self, kind: str) -> None:
        for worker in self._workers.values():
            worker.send_message(kind)

    async def _wait_for_exit(self, runs: "Sequence[asyncio.Task[None]]") -> None:
        """Wait for all workers; after the drain timeouts or a second signal, kill those that are left."""
        server = self._settings.server
        all_ended = asyncio.gather(*runs)
        second_signal = asyncio.ensure_future(self._abort.wait())
        either: list[asyncio.Future[Any]] = [all_ended, second_signal]
        timeout_s = server.drain_delay_s + server.exit_timeout_s + BEYOND_S
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        second_signal.cancel()
        if all_ended.done():
            return
        self._code = 1
        self._send_to_all("hurry")
        await asyncio.wait([all_ended], timeout=ABORT_S)
        for worker in self._workers.values():
            worker.kill()
        await all_ended

    async def _run_worker(self, number: int) -> None:
        """Run worker `number` and restart it with backoff, until all stop."""
        deaths = 0
        while not self._stop.is_set():
            began = monotonic()
            code = await self._run_once(number)
            if self._stop.is_set():
                self._code = self._code or int(code != 0)
            elif not self._served:
                log("failed", f"worker {number} exited with {code} before any was ready", level="ERROR", worker=number)
                self._code = code if code > 0 else 1
                self._stop.set()
            else:
                deaths, wait_s = wait_before_restart(deaths, monotonic() - began)
                message = f"worker {number} exited with code {code}; restarting in {wait_s:g} s"
                log("worker.died", message, level="ERROR", worker=number, code=code, deaths=deaths)
                self._restarts[number] += 1
                await wait_for_event(self._stop, wait_s)

    async def _run_once(self, number: int) -> int:
        """Start a worker and wait for its exit; return its exit code, negative for a signal."""
        try:
            worker, reader = await self.start(number)
        except OSError as error:
            log("failed", f"worker {number} cannot be started: {error.strerror}", level="ERROR", worker=number)
            return 1
        self._workers[number] = worker
        self._assign_sockets()
        if self._stop.is_set():  # it was starting when the others got the message
            worker.send_message("stop")
        await worker.listen(reader, self._handle_frame)
        self._retain_counters(worker)
        self._assign_sockets()
        code = await worker.process.wait()
        del self._workers[number]
        self._assign_sockets()
        return code

    async def start(self, number: int) -> tuple[WorkerHandle, asyncio.StreamReader]:
        return await start(number, self._argv, self._buckets, self._metrics, self._rpc, self._http)

    def _retain_counters(self, worker: WorkerHandle) -> None:
        """Retain the worker's counters when its channel closes: from then on scrapes do not include it."""
        if worker.scrape:
            self._departed = retained_counters([self._departed, worker.scrape])

    def _assign_sockets(self) -> None:
        """Assign the sockets to the workers; while stopping, all keep theirs."""
        if self._stop.is_set():
            return
        self._waiting = distribute_sockets(len(self._http), share_states(self.accepting(self._workers)), monotonic())
        if self._waiting:
            asyncio.get_running_loop().call_later(PATIENCE_S, self._assign_sockets)

    def _handle_frame(self, worker: WorkerHandle, frame: Frame) -> None:
        if frame.kind == "ask":
            spawn(self._fan_out(worker, frame))
        elif frame.kind == "joined":
            worker.joined = True
        elif frame.kind == "listens":
            worker.share.confirm(frame.head["order"])
            if self._waiting:
                self._assign_sockets()
        elif frame.kind == "leaving":
            worker.leaving = True
            asyncio.get_running_loop().call_later(TOGETHER_S, self._assign_sockets)
        else:
            self._readiness_changed(worker, frame.head["ready"])

    def _readiness_changed(self, worker: WorkerHandle, ready: bool) -> None:
        """Handle a worker's change of readiness; the sockets of one that is not ready go to others."""
        worker.well = ready
        if ready:
            spawn(self._admit(worker))
        else:
            worker.ready = False
            self._assign_sockets()

    async def _admit(self, worker: WorkerHandle) -> None:
        """Let a worker that became ready take connections, once it serves what the others do."""
        others = [other for other in self._workers.values() if other.ready]
        if self._settings.model.control_mode == "explicit" and not await self._admin.catch_up(worker, others):
            worker.kill()
            return
        if worker.well:  # it has not become unready in the meantime
            self._accept(worker)

    def _accept(self, worker: WorkerHandle) -> None:
        worker.ready = self._served = True
        self._assign_sockets()
        log("worker.ready", f"worker {worker.number} accepts connections", worker=worker.number, pid=worker.process.pid)

    async def _fan_out(self, origin: WorkerHandle, request: Frame) -> None:
        how = request.head["how"]
        workers = [worker for _, worker in sorted(self._workers.items()) if worker.joined]
        if how == "load":
            response = await self._admin.load(workers, request)
        elif how == "unload":
            response = await self._admin.unload(workers, request)
        elif how in {"park", "wake"}:
            response = await self._admin.park_or_wake(workers, request)
        else:
            received = await request_all(workers, request)
            responses = [received.get(worker.number, TIMED_OUT) for worker in workers if worker.joined]
            response = first_failure(responses) if how == "all" else self._merge(how, workers, received)
        origin.send(response.frame("answered", request.head["id"]))

    def _merge(self, how: str, workers: Sequence[WorkerHandle], responses: dict[int, WorkerResponse]) -> WorkerResponse:
        """Merge responses. A worker that is too busy for a scrape counts with its last one: counters must not fall."""
        if how != "metrics":
            roster = [
                {"worker": number, "pid": worker.process.pid, "restarts": self._restarts[number]}
                for number, worker in sorted(self._workers.items())
            ]
            return merge(how, responses, roster=roster)
        for worker in workers:
            response = responses.get(worker.number)
            if not worker.joined:  # it exited during the call: its counters are in _departed
                responses.pop(worker.number, None)
            elif response is not None and response.status == 200:
                worker.scrape = response.body.decode().removesuffix(f"{EOF}\n")
            elif responses and worker.scrape:
                other = next(iter(responses.values()))
                responses[worker.number] = other._replace(status=200, body=worker.scrape.encode())
        return merge(how, responses, self._departed)
