"""Rows in which processes are killed, stopped or terminated under load."""

import asyncio
import os
import random
import signal
import subprocess
import sys

from tests.reliability.load import Load, RpcLoad
from tests.reliability.scenario import BACK_S, Scenario, patience
from tests.reliability.table import TABLE, Row, Run, row

GROUP = "Processes killed, stopped and terminated"
LOAD_S = 1.0  # what the start of the small model may take on a busy machine, above the 2 s of a replacement
STOPPED_S = 10.0
RACE = " At most one request each time is reset, on a keep-alive connection that the gateway closes at the same moment."
ON_DEMAND = ("pilot light",)  # started with the next replica that it can fork


@row(GROUP, short=True)
async def replica_killed(run: Scenario) -> None:
    """One of two replicas is killed with SIGKILL, 20 times, at 100 requests a second.

    Only requests that the killed replica was executing fail, with 502; it is replaced within 2 s plus the load time,
    the twentieth time too.
    """
    await run.serve()
    async with Load(run.gateway_port, rate=100) as load:
        for _ in range(run.times(20, 5)):
            await asyncio.sleep(1.0)
            gone = run.kill(["replica"], signal.SIGKILL, load)
            await run.back({"replica": 2}, gone, 2 + LOAD_S)
            await run.until(lambda: run.ready() == 2, "two ready replicas", 2 + LOAD_S)
    run.judge(load, refused=load.allowed, back_s=1.0)
    run.expect(set(load.statuses) <= {502}, f"statuses {dict(load.statuses)}, expected 502 only")


@row(GROUP, short=True)
async def only_replica_killed(run: Scenario) -> None:
    """The only replica is killed with SIGKILL, 10 times, 3 s apart, under load.

    Requests wait for the replacement: only what the killed replica was executing fails, with 502.
    """
    await run.serve(least=1, most=1)
    async with Load(run.gateway_port) as load:
        for _ in range(run.times(10, 4)):
            await asyncio.sleep(3.0)
            gone = run.kill(["replica"], signal.SIGKILL, load)
            await run.back({"replica": 1}, gone, 2 + LOAD_S)
        await run.until(lambda: run.ready() == 1, "a ready replica", 5)
    run.judge(load, refused=load.allowed, back_s=2 + 2 * LOAD_S)
    run.expect(set(load.statuses) <= {502}, f"statuses {dict(load.statuses)}, expected 502 only")


def killed_together(kinds: tuple[str, ...], times: int, cost: str, *, short: bool = False) -> None:
    """Add a row that kills one process of each kind at once; `cost` is how requests in flight may fail."""

    async def run_row(run: Scenario) -> None:
        await run.serve()
        await run.until(lambda: set(kinds) <= set(run.kinds().values()), f"{' and '.join(kinds)} to run")
        before = {kind: len(run.pids(kind)) for kind in kinds if kind not in ON_DEMAND}
        async with Load(run.gateway_port) as load:
            for _ in range(run.times(times, 2)):
                await asyncio.sleep(2.0)
                gone = run.kill(kinds, signal.SIGKILL, load)
                await run.back(before, gone, 10.0)
            await asyncio.sleep(1.0)
        bounds = dict.fromkeys(cost.split(), load.allowed)
        if {"gateway", "control"} <= set(kinds):  # the two that hold the listening sockets
            bounds["lost"] = int(load.rate * BACK_S * patience() * run.times(times, 2))
        run.judge(load, back_s=BACK_S, **bounds)

    together = " and ".join(subject_of(kind) for kind in kinds)
    lost = {"": "Nothing is lost", "reset": "Only requests in flight in the gateway are reset"}
    expectation = lost.get(cost, "Only requests in flight in the killed processes fail")
    if {"gateway", "control"} <= set(kinds):
        expectation += ", and connections are refused briefly, since both holders of the listening sockets are gone"
    add(
        f"{'-and-'.join(kind.replace(' ', '-') for kind in kinds)}-killed",
        f"{capitalised(together)} {'are' if len(kinds) > 1 else 'is'} killed with SIGKILL"
        f"{' at once' if len(kinds) > 1 else ''}, {times} times.",
        f"{expectation}; serving resumes within {BACK_S:g} s, killed processes within 10 s"
        f"{', the pilot light with the next start' if 'pilot light' in kinds else ''}.",
        run_row,
        short,
    )


def subject_of(kind: str) -> str:
    return {"replica": "one of two replicas", "control": "the control process"}.get(kind, f"the {kind}")


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def add(name: str, fault: str, expectation: str, run: Run, short: bool = False) -> None:
    TABLE.append(Row(name, GROUP, fault, expectation, run, short))


killed_together(("gateway",), 10, "reset", short=True)
killed_together(("control",), 5, "", short=True)
killed_together(("pilot light",), 3, "")
killed_together(("parent",), 3, "", short=True)
killed_together(("log writer",), 3, "")
killed_together(("gateway", "control"), 5, "reset", short=True)
killed_together(("gateway", "pilot light"), 3, "reset")
killed_together(("control", "pilot light"), 3, "")
killed_together(("replica", "gateway"), 4, "refused reset")
killed_together(("replica", "control"), 4, "refused")
killed_together(("replica", "pilot light"), 4, "refused")


@row(GROUP, short=True)
async def everything_but_replicas_killed(run: Scenario) -> None:
    """Parent, control process, gateway and pilot light are killed at once; `platformctl up` runs 2 s later.

    Connections are refused until then; `up` adopts the replicas, none is restarted.
    """
    await run.serve()
    replicas = run.pids("replica")
    async with Load(run.gateway_port) as load:
        await asyncio.sleep(1.0)
        run.kill(["parent", "control", "gateway", "pilot light"], signal.SIGKILL, load)
        await asyncio.sleep(2.0)
        await run.verb("up", ok=True)
        await asyncio.sleep(2.0)
    queued = int(load.rate)  # connections that waited in the listening socket while its owners died one by one
    run.judge(load, reset=load.allowed + queued, lost=load.counts.sent, back_s=2 + 2 * BACK_S)
    run.expect(run.pids("replica") == replicas, f"replicas {replicas} became {run.pids('replica')}")


def stopped(kind: str, *, short: bool = False) -> None:
    """Add a row that stops a process, or all, with SIGSTOP."""

    async def run_row(run: Scenario) -> None:
        await run.serve()
        pause_s = run.times(int(STOPPED_S), 3)
        async with Load(run.gateway_port, rate=20, timeout_s=60) as load:
            await asyncio.sleep(1.0)
            victims = run.pids(kind)[:1] if kind else [*run.kinds()]
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in victims:
                    os.kill(pid, number)
                await asyncio.sleep(pause_s if number == signal.SIGSTOP else 2.0)
        run.judge(load, back_s=pause_s + 2)

    subject = f"{subject_of(kind)} is" if kind else "all processes, as when the machine sleeps, are"
    add(
        f"{kind.replace(' ', '-') or 'machine'}-stopped",
        f"{capitalised(subject)} stopped for {STOPPED_S:g} s (SIGSTOP), then continued.",
        "Nothing is lost; responses are delayed by at most the pause.",
        run_row,
        short,
    )


for each in ("replica", "gateway", "control", "pilot light", ""):
    stopped(each, short=each == "gateway")


def terminated(kind: str) -> None:
    """Add a row that ends a process with SIGTERM, from outside."""

    async def run_row(run: Scenario) -> None:
        await run.serve()
        before = {kind: len(run.pids(kind))} if kind not in ON_DEMAND else {}
        async with Load(run.gateway_port) as load:
            for _ in range(run.times(4, 2)):
                await asyncio.sleep(2.0)
                gone = run.kill([kind], signal.SIGTERM)
                await run.back(before, gone, 15.0)
            await asyncio.sleep(1.0)
        run.judge(load, reset=run.times(4, 2) if kind == "gateway" else 0, back_s=BACK_S)

    add(
        f"{kind.replace(' ', '-')}-terminated",
        f"{capitalised(subject_of(kind))} gets SIGTERM from outside, 4 times.",
        f"Nothing is lost: it finishes what it has, and runs again.{RACE if kind == 'gateway' else ''}",
        run_row,
        kind == "replica",
    )


for each in ("replica", "gateway", "control", "pilot light"):
    terminated(each)


@row(GROUP)
async def crashes_then_zero(run: Scenario) -> None:
    """The replica of a service with minReplicas 0 is killed 5 times; then the service scales to zero.

    Each request wakes it again, also from zero afterwards, within its back-off of at most 30 s.
    """
    await run.serve(least=0, most=1)
    load = Load(run.gateway_port, rate=2)
    async with load:
        for _ in range(5):
            await run.until(lambda: run.pids("replica"), "a replica")
            await asyncio.sleep(1.0)
            gone = run.kill(["replica"], signal.SIGKILL, load)
            await run.until(lambda gone=gone: not gone & set(run.pids("replica")), "it to be gone", 5)
    run.judge(load, refused=load.allowed, back_s=30)
    await run.until(lambda: not run.pids("replica"), "zero replicas", 60)
    async with Load(run.gateway_port, rate=2) as after:
        await asyncio.sleep(3.0)
    run.judge(after, back_s=30)


@row(GROUP, short=True)
async def gateway_killed_under_grpc(run: Scenario) -> None:
    """The gateway is killed with SIGKILL 4 times while calls come over gRPC, which wait for the channel.

    Only calls in flight fail, with UNAVAILABLE; serving is back within 3 s.
    """
    await grpc_row(run, "gateway", BACK_S)


@row(GROUP)
async def replica_killed_under_grpc(run: Scenario) -> None:
    """One of two replicas is killed with SIGKILL 4 times while calls come over gRPC.

    Only calls that the replica was executing fail, with UNAVAILABLE; the other one serves the rest.
    """
    await grpc_row(run, "replica", 2 + LOAD_S)


async def grpc_row(run: Scenario, kind: str, back_s: float) -> None:
    uri = run.model()
    file = run.document(uri, least=2, most=2)
    with open(file, "r+") as document:
        text = document.read().replace("protocolVersion: v2", "protocolVersion: grpc-v2")
        document.seek(0)
        document.write(text)
    await run.verb("deploy", "-f", file, ok=True)
    await run.until(lambda: run.ready() == 2 and "grpc" in run.status("slow").urls, "a port for gRPC")
    port = int(run.status("slow").urls["grpc"].rpartition(":")[2])
    before = {kind: len(run.pids(kind))}
    async with RpcLoad(port) as load:
        for _ in range(run.times(4, 2)):
            await asyncio.sleep(2.0)
            gone = run.kill([kind], signal.SIGKILL, load)
            await run.back(before, gone, 10.0)
        await asyncio.sleep(1.0)
    run.judge(load, reset=load.allowed, back_s=back_s)


@row(GROUP)
async def racing_control_processes(run: Scenario) -> None:
    """Six `platformctl up` race after each of 3 kills of the control process; then a second control process and a
    second gateway are started manually.

    One wins, the others find it and end; nothing is lost.
    """
    await run.serve()
    async with Load(run.gateway_port) as load:
        for _ in range(3):
            await asyncio.sleep(random.uniform(0.5, 1.5))
            run.kill(["control"])
            await asyncio.gather(*(run.verb("up", ok=True) for _ in range(6)))
            await run.until(lambda: len(run.pids("control")) == 1, "one control process", 10)
        for module in ("pilotlight.control_plane.daemon", "pilotlight.gateway"):
            command = [sys.executable, "-m", module, "--home", str(run.home.root)]
            await asyncio.to_thread(subprocess.run, command, env=run.env, capture_output=True, timeout=60)
    run.judge(load, back_s=BACK_S)
    run.expect(len(run.pids("gateway")) == 1, f"gateways: {run.pids('gateway')}")
