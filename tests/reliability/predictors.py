"""Rows on a predictor alone, without gateway and control process."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.reliability.load import Connection, Load, infer_body
from tests.reliability.scenario import Scenario, descriptors, rss_bytes
from tests.reliability.table import row
from tests.serving import RunningServer

GROUP = "A predictor alone"
PATH = "/v2/models/slow/infer"
POLL = ("--model-control-mode", "poll", "--repository-poll-secs", "1")


@contextmanager
def served(run: Scenario, *flags: str) -> Iterator[RunningServer]:
    """A predictor of the model `slow` in the folder `repository`."""
    repository = run.folder / "repository" / "slow" / "1"
    repository.mkdir(parents=True)
    write(run, repository)
    config = 'backend: "python"\nmax_batch_size: 0\n'
    (repository.parent / "config.pbtxt").write_text(config)
    with RunningServer(run.folder, "--model-repository", str(repository.parents[1]), *flags) as server:
        yield server


def write(run: Scenario, folder: Path, revision: int = 1) -> None:
    Path(run.model("source", revision), "model.py").replace(folder / "model.py")


def load(server: RunningServer, **how: Any) -> Load:
    return Load(server.port, prefix="/", **how)


@row(GROUP, short=True)
async def predictor_terminated(run: Scenario) -> None:
    """SIGTERM while 6 requests, 12 s of work for one instance, are executed or wait; new clients come.

    All six get a response, new connections are refused, and the process exits with code 0.
    """
    work_s = run.times(12, 2) / 6  # one instance: one after the other
    with served(run) as server:
        body = [json.dumps(infer_body(number, work_s)).encode() for number in range(1, 7)]
        waiting = [asyncio.create_task(Connection(server.port).request(PATH, each)) for each in body]
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for_event, "stopping")
        await run.until(lambda: refused(server.port), "new connections to be refused", 5)
        answers = [status for status, _, _ in await asyncio.gather(*waiting)]
        run.counts.sent, run.counts.right = len(answers), answers.count(200)
        run.expect(answers == [200] * 6, f"answers: {answers}")
        code = await asyncio.to_thread(server.process.wait, 30)
        run.expect(code == 0, f"exit code {code}")


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


@row(GROUP)
async def reloads(run: Scenario) -> None:
    """A repository in poll mode: 8 new versions of the code in place, among them two that do not work.

    Nothing is lost; a version that fails its warm-up or does not load never replaces the one that serves.
    """
    with served(run, *POLL) as server:
        folder = run.folder / "repository" / "slow" / "1"
        async with load(server, rate=100) as traffic:
            for revision in range(2, 10):
                await asyncio.sleep(2.0)
                if revision in (4, 7):
                    text = "INPUTS = {'x': ('FP64', [2])}\ndef predict(x): return undefined\n" if revision == 4 else "("
                    (folder / "model.py").write_text(text)
                else:
                    write(run, folder, revision)
            await asyncio.sleep(3.0)
        run.judge(traffic, back_s=2)
        run.expect(9 in traffic.answers, f"versions that answered: {dict(traffic.answers)}")


@row(GROUP)
async def unloads(run: Scenario) -> None:
    """A model is unloaded and loaded 8 times under load.

    Requests meanwhile are refused with 404 or 503; none is cut off.
    """
    with served(run, "--model-control-mode", "explicit", "--load-model", "slow") as server:
        async with load(server, rate=40) as traffic:
            for _ in range(8):
                for verb in ("unload", "load"):
                    await asyncio.sleep(0.5)
                    await asyncio.to_thread(server.post, f"/v2/repository/models/slow/{verb}", b"{}")
        run.judge(traffic, refused=traffic.counts.sent, back_s=3)
        run.expect(set(traffic.statuses) <= {400, 404, 503}, f"statuses {dict(traffic.statuses)}")


@row(GROUP)
async def clients_cancel(run: Scenario) -> None:
    """100 clients leave while their requests wait behind a slow one.

    At most the one in execution runs to its end; the next client is served immediately.
    """
    with served(run) as server:
        connections = [Connection(server.port) for _ in range(101)]
        tasks = []
        for number, connection in enumerate(connections, 1):
            body = json.dumps(infer_body(-number, 1.0)).encode()
            tasks.append(asyncio.create_task(connection.request(PATH, body)))
            await asyncio.sleep(0.2 if number == 1 else 0)
        await asyncio.sleep(0.3)
        for connection in connections[1:]:
            connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with load(server, rate=10) as traffic:
            await asyncio.sleep(2.0)
        run.judge(traffic, back_s=2)
        executed = (run.folder / "executed").read_text().split()
        early = [number for number in executed if int(number) < 0]
        run.notes.append(f"{len(early)} of 101 executed")
        run.expect(len(early) <= 2, f"{len(early)} were executed, expected at most 2")


@row(GROUP)
async def workers_killed(run: Scenario) -> None:
    """`--workers 2`: a worker is killed 5 times, terminated 3 times, stopped for 5 s; then the parent is killed.

    Only what a killed worker had is lost; without the parent both workers end.
    """
    with served(run, "--workers", "2") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

        def workers() -> list[int]:
            pids = [int(pid) for pid in children.read_text().split()]
            return [pid for pid in pids if b"pilotlight_predictor" in Path(f"/proc/{pid}/cmdline").read_bytes()]

        await run.until(lambda: len(workers()) >= 2, "two workers", 20)
        first = set(workers())
        async with load(server, rate=40) as traffic:
            for number in [signal.SIGKILL] * 5 + [signal.SIGTERM] * 3:
                await asyncio.sleep(1.5)
                traffic.fault()
                victim = workers()[-1]
                os.kill(victim, number)
                await run.until(
                    lambda victim=victim: victim not in workers() and len(workers()) >= len(first), "it again"
                )
            victim = workers()[-1]
            os.kill(victim, signal.SIGSTOP)
            await asyncio.sleep(5.0)
            os.kill(victim, signal.SIGCONT)
            await asyncio.sleep(1.0)
        run.judge(traffic, reset=traffic.allowed, back_s=7)
        left = workers()
        server.process.kill()
        await run.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "the workers to end", 10)


@row(GROUP)
async def many_requests(run: Scenario) -> None:
    """200,000 requests to one predictor, 50 at a time.

    All right; after the first 20,000 its memory grows by less than 8 MiB, its descriptors not at all.
    """
    total = run.times(200_000, 40_000)
    with served(run) as server:
        connections = [Connection(server.port) for _ in range(50)]
        sent = iter(range(1, total + 1))
        figures: list[tuple[int, int]] = []

        async def client(connection: Connection) -> None:
            for number in sent:
                body = json.dumps(infer_body(0, 0.0) | {"id": str(number)}).encode()
                status, _, answer = await connection.request(PATH, body)
                run.counts.sent += 1
                good = status == 200 and json.loads(answer)["id"] == str(number)
                run.counts.right += good
                run.counts.wrong += not good
                if number in (total // 10, total):
                    figures.append((rss_bytes(server.process.pid), descriptors(server.process.pid)))

        began = time.monotonic()
        await asyncio.gather(*(client(connection) for connection in connections))
        grown, more = figures[1][0] - figures[0][0], figures[1][1] - figures[0][1]
        run.notes.append(f"{grown / 2**20:+.1f} MiB, {more:+} descriptors in {time.monotonic() - began:.0f} s")
        run.expect(run.counts.right == total, f"{total - run.counts.right} of {total} failed")
        run.expect(grown < 8 << 20, f"grew by {grown / 2**20:.1f} MiB")
        run.expect(more <= 0, f"{more} descriptors more")
        for connection in connections:
            connection.close()


@row(GROUP)
async def streams_cut(run: Scenario) -> None:
    """40 gRPC streams of a decoupled model are cancelled by their clients after 5 of 500 responses.

    The model is notified of each; threads, descriptors and requests in flight return to what they were.
    """
    source = """
import time
import triton_python_backend_utils as pb_utils
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(500):
                if request.is_cancelled() or sender.is_cancelled():
                    open("FOLDER/cancelled", "ab").write(b"x")
                    break
                tensor = pb_utils.Tensor("y", np.array([number], np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]))
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
    folder = run.folder / "repository" / "parts" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(source.replace("FOLDER", str(run.folder)))
    (folder.parent / "config.pbtxt").write_text(
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\ninstance_group [{ count: 4 }]\n'
        'input [{ name: "x" data_type: TYPE_FP32 dims: [1] }]\noutput [{ name: "y" data_type: TYPE_FP32 dims: [1] }]\n'
        'parameters { key: "warmup" value { string_value: "none" } }\n'
    )
    with served(run, "--grpc-port", "0", "--warmup", "none") as server:
        port = int(server.wait_for_event("grpc.listening")["grpc_port"])
        status = Path(f"/proc/{server.process.pid}/status")
        await cut_streams(port, 4)
        before = descriptors(server.process.pid)
        await cut_streams(port, 36)
        await run.until(lambda: server.get("/status").json()["in_flight"] == 0, "nothing in flight", 30)
        await run.until(lambda: descriptors(server.process.pid) <= before + 2, "its descriptors to be given back", 10)
        marks = run.folder / "cancelled"
        await run.until(lambda: marks.stat().st_size == 40, "the model to learn of all", 10)
        cancelled = marks.stat().st_size
        run.counts.sent = run.counts.right = 40
        threads = next(line for line in status.read_text().splitlines() if line.startswith("Threads"))
        run.notes.append(f"{cancelled} of 40 notified; {threads}")


async def cut_streams(port: int, count: int) -> None:
    import numpy as np
    from tritonclient.grpc import InferInput
    from tritonclient.grpc.aio import InferenceServerClient

    async def cut() -> None:
        tensor = InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.array([1], np.float32))

        async def requests() -> Any:
            yield {"model_name": "parts", "inputs": [tensor]}
            await asyncio.sleep(60)

        async with InferenceServerClient(f"127.0.0.1:{port}") as client:
            answers = client.stream_infer(requests())
            seen = 0
            async for _ in answers:
                seen += 1
                if seen == 5:
                    answers.cancel()
                    return

    await asyncio.gather(*(cut() for _ in range(count)))
