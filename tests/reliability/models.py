"""Rows in which the model itself misbehaves while it serves."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from tests.reliability.load import Load
from tests.reliability.scenario import Scenario
from tests.reliability.table import row

GROUP = "Models that misbehave"
DEADLINE = "    timeout: 2"
REPLACED_S = 25.0  # three times the deadline, 10 s more while the GIL is held, and a start


@row(GROUP)
async def model_exits(run: Scenario) -> None:
    """A model ends its process on its 100th request; two replicas, 40 requests a second, 25 s.

    Only what it was executing fails, with 502; other requests wait for a replica.
    """
    await run.serve(uri=run.model(fault="if count == 100: os._exit(139)"))
    async with Load(run.gateway_port) as load:
        await asyncio.sleep(25.0)
    run.judge(load, refused=load.counts.sent // 100 + 10, back_s=5)
    run.expect(set(load.statuses) <= {502}, f"statuses {dict(load.statuses)}, expected 502 only")


@row(GROUP)
async def model_leaks(run: Scenario) -> None:
    """A model keeps 4 MiB of each request, with a limit of 300 MiB; one replica, 20 requests a second, 20 s.

    It is ended at its limit and replaced; only what it was executing fails, with 502.
    """
    fault = "globals().setdefault('kept', []).append(bytearray(os.urandom(1024) * 4096))"
    limits = "      resources: {limits: {memory: 300Mi}}"
    await run.serve(least=1, most=1, uri=run.model(fault=fault), model=limits)
    async with Load(run.gateway_port, rate=20) as load:
        await asyncio.sleep(20.0)
    run.judge(load, refused=40, back_s=8)
    run.expect(set(load.statuses) <= {502}, f"statuses {dict(load.statuses)}, expected 502 only")
    run.expect(any("limit" in event for event in run.events()), "no event names the limit")


@row(GROUP, short=True)
async def model_hangs(run: Scenario) -> None:
    """One request never returns (timeout: 2 s); one replica, 10 requests a second.

    It and those behind it get 504 at their deadline; the replica is replaced within 25 s, and an
    event names the model. Then all is right again.
    """
    await hung(run, "time.sleep(100000)")


@row(GROUP)
async def model_holds_the_gil(run: Scenario) -> None:
    """One request never returns and holds Python's global interpreter lock (timeout: 2 s); one replica.

    As for one that hangs: 504 at the deadline, replaced within 25 s, events that name the request and the model.
    """
    await hung(run, "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')")
    named = [event for event in run.events() if "did not respond to request" in event]
    run.expect(len(named) == 1, f"not one event names the request: {named}")


async def hung(run: Scenario, statement: str) -> None:
    marker = run.folder / "hang"
    fault = f"if os.path.exists({str(marker)!r}): os.unlink({str(marker)!r}); {statement}"
    await run.serve(least=1, most=1, uri=run.model(fault=fault), predictor=DEADLINE)
    (victim,) = run.pids("replica")
    async with Load(run.gateway_port, rate=10) as load:
        await asyncio.sleep(1.0)
        marker.touch()
        await run.until(lambda: victim not in run.pids("replica"), "the replica to be given up", REPLACED_S)
        await run.until(lambda: run.ready() == 1, "its replacement", 5)
        failed = load.counts.failed
        await asyncio.sleep(4.0)
        run.expect(
            load.counts.failed <= failed + 21, "requests fail on the replacement too"
        )  # 2 s of those sent before
    run.judge(load, refused=int(load.rate * REPLACED_S), back_s=REPLACED_S)
    run.expect(set(load.statuses) <= {502, 503, 504}, f"statuses {dict(load.statuses)}")
    named = [event for event in run.events() if "abandoned" in event and ("'slow'" in event or "model.py" in event)]
    run.expect(bool(named), f"no event names the model: {run.events()[-3:]}")


@row(GROUP)
async def model_starts_children(run: Scenario) -> None:
    """A model starts processes, some in a session of their own; its service is deleted. With and without pilot light.

    Nothing is lost, and no child outlives the service.
    """
    fault = "import subprocess; subprocess.Popen(['sleep', '601'], start_new_session=bool(count % 2))"
    for light in ("on", "off"):
        run.env["PILOTLIGHT_PILOT_LIGHT"] = light
        await run.serve(least=1, most=1, uri=run.model(fault=fault))
        if light == "on":  # the first one is older than the pilot light
            await run.until(lambda: run.pids("pilot light"), "the pilot light", 20)
            gone = run.kill(["replica"])
            await run.back({"replica": 1}, gone, 5)
        async with Load(run.gateway_port, rate=6) as load:
            await asyncio.sleep(1.0)
        run.judge(load)
        children = sleepers(run)
        run.expect(len(children) >= 5, f"pilot light {light}: {len(children)} children, expected 5")
        await run.verb("delete", "slow", ok=True)
        await run.until(lambda: not sleepers(run), f"pilot light {light}: no child to be left after delete", 10)
        await run.verb("down", "--timeout", "5", ok=True)


def sleepers(run: Scenario) -> list[int]:
    """Children of the model, by their command and the home in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == b"sleep\x00601\x00":
                cwd = os.readlink(folder / "cwd")
                if str(run.folder) in cwd or str(run.folder).encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found
