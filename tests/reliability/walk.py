"""The random walk and the soak: rows that run for `--minutes`."""

import asyncio
import random
import signal
import time
from collections import Counter, defaultdict
from contextlib import suppress
from statistics import linear_regression

from tests.reliability.load import Load
from tests.reliability.scenario import BACK_S, Scenario, descriptors, patience, rss_bytes
from tests.reliability.table import row

GROUP = "Long runs"
MINUTES = 30.0
SEED: int | None = None
KILLS = [["control"], ["gateway"], ["replica"], ["pilot light"], ["parent"], ["gateway", "control"]]
KILLS += [["control", "pilot light"], ["gateway", "pilot light"]]
VERBS = ("deploy", "rollback", "canary", "promote", "abort", "scale", "broken", "broken_canary", "delete", "kill")
WARM_S = 300.0  # what a process keeps for good is there after this
IDLE_S = 120.0
GROWTH_PER_HOUR = {"memory": 8 << 20, "descriptors": 4, "disk": 16 << 20}


class Walk:
    """The model of one service: which revisions may answer after each verb."""

    def __init__(self, run: Scenario, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)
        self.history: list[int] = []  # revisions that had all requests, the last one has them; empty: not deployed
        self.trial = 0
        self.done: Counter[str] = Counter()
        self.loads: list[Load] = []
        (run.folder / "broken").mkdir()
        (run.folder / "broken" / "model.py").write_text("raise RuntimeError('broken')")
        self.broken_file = run.document(str(run.folder / "broken"))

    def file(self, revision: int) -> str:
        return self.run.document(self.run.model(f"r{revision}", revision))

    async def step(self) -> None:
        """Do one verb or kill that makes sense now, then check which revisions answer."""
        verb = self.random.choice(VERBS)
        other = self.random.choice([each for each in (1, 2, 3, 4) if each not in (self.history or [0])[-1:]])
        before = len(self.run.missed)
        if await getattr(self, verb)(other) is False:
            return
        self.done[verb] += 1
        await self.check(verb)
        self.run.missed[before:] = [f"step {self.done.total()}, {verb}: {text}" for text in self.run.missed[before:]]

    async def deploy(self, revision: int) -> None:
        await self.run.verb("deploy", "-f", self.file(revision), ok=True)
        self.history.append(revision)
        self.trial = 0

    async def rollback(self, _: int) -> bool:
        if self.trial or len(self.history) < 2:
            return False
        done = await self.run.verb("rollback", "slow", ok=True)
        if done.returncode == 0:
            self.history.append(self.history[-2])
        return True

    async def canary_start(self, file: str, ok: bool) -> None:
        percent = str(self.random.choice([5, 20, 50]))
        await self.run.verb("canary", "start", "slow", "-f", file, "--percent", percent, "--timeout", "20", ok=ok)

    async def canary(self, revision: int) -> bool:
        if self.trial or not self.history:
            return False
        await self.canary_start(self.file(revision), True)
        self.trial = revision
        return True

    async def promote(self, _: int) -> bool:
        if not self.trial:
            return False
        await self.run.verb("canary", "promote", "slow", "--full", ok=True)
        self.history.append(self.trial)
        self.trial = 0
        return True

    async def abort(self, _: int) -> bool:
        if not self.trial:
            return False
        await self.run.verb("canary", "abort", "slow", ok=True)
        self.trial = 0
        return True

    async def scale(self, _: int) -> bool:
        if not self.history:
            return False
        least = self.random.choice([1, 2, 3])
        await self.run.verb("scale", "slow", "--min", str(least), "--max", str(least + 1), ok=True)
        return True

    async def broken(self, _: int) -> bool:
        """Deploy what fails, then start a new history, so that a rollback afterwards has one meaning."""
        if self.trial or not self.history:
            return False
        await self.run.verb("deploy", "-f", self.broken_file, "--timeout", "20", ok=False)
        await self.check("broken deploy")
        await self.run.verb("delete", "slow", ok=True)
        await self.deploy(self.history.pop())
        self.history = self.history[-1:]
        return True

    async def broken_canary(self, _: int) -> bool:
        if self.trial or not self.history:
            return False
        await self.canary_start(self.broken_file, False)
        await self.check("broken canary")
        await self.run.verb("canary", "abort", "slow")
        return True

    async def delete(self, _: int) -> bool:
        if not self.history or self.random.random() < 0.7:
            return False
        await self.run.verb("delete", "slow", ok=True)
        self.history, self.trial = [], 0
        return True

    async def kill(self, _: int) -> None:
        kinds = self.random.choice(KILLS)
        running = Counter(self.run.kinds().values())
        kinds = [kind for kind in kinds if running[kind]]
        gone = self.run.kill(kinds, signal.SIGKILL, *self.loads)
        self.done[" and ".join(kinds)] += 1
        needed = {kind: 1 for kind in kinds if kind not in ("replica", "pilot light")}
        await self.run.back(needed, gone, 10.0)
        await self.run.until(self.run.accepts, "the gateway to accept connections", BACK_S)

    async def check(self, after: str) -> None:
        """Only revisions that the model allows answer."""
        load = Load(self.run.gateway_port, rate=20, work_s=0.0)
        async with load:
            await asyncio.sleep(0.6)
        allowed = {*self.history[-1:], self.trial} - {0}
        answered = set(load.answers)
        self.run.expect(answered <= allowed, f"after {after}: {answered} answered, allowed {allowed}")
        if allowed:
            self.run.judge(load)
        else:
            self.run.expect(set(load.statuses) == {404}, f"after {after}: deleted, statuses {dict(load.statuses)}")


@row(GROUP)
async def random_walk(run: Scenario) -> None:
    """Verbs in random order for 30 minutes, unless noted below: deploy, rollback, canary start, promote and abort,
    scale, broken deploys and canaries, delete; among them kills of control process, gateway, replica, pilot light,
    parent, and pairs of them.

    After each step only revisions that a model of the service allows respond; every verb behaves as expected; another
    service loses only what was in flight in killed processes; nothing is left after `down`.
    """
    seed = SEED if SEED is not None else random.randrange(1 << 32)
    run.notes.append(f"{MINUTES:g} minutes, seed {seed}")
    print(f"random walk: seed {seed}", flush=True)
    await run.serve(least=2, most=2, name="calm", uri=run.model("calm"))
    walk = Walk(run, seed)
    until = time.monotonic() + 60 * MINUTES
    async with Load(run.gateway_port, "calm", rate=10) as calm:
        walk.loads.append(calm)
        while time.monotonic() < until:
            await walk.step()
    refused = int(walk.done["gateway and control"] * BACK_S * patience() * calm.rate)
    run.judge(calm, refused=calm.allowed, reset=calm.allowed, lost=refused, back_s=2 * BACK_S)
    run.notes.append(", ".join(f"{count} {name}" for name, count in walk.done.most_common()))


@row(GROUP)
async def soak(run: Scenario) -> None:
    """20 requests a second for 30 minutes, unless noted below; a service that scales to zero and wakes three times a
    minute; and a deploy each minute.

    Nothing is lost. After 5 minutes memory (8 MiB an hour), descriptors (4 an hour) of every process that lives on, and
    the disk (16 MiB an hour) grow no faster than that. Descriptors are those that are open at all times within two
    minutes: idle connections of a busy moment are closed after 50 s.
    """
    await run.serve(least=1, most=1)
    await run.serve(least=0, most=1, name="zero")
    run.notes.append(f"{MINUTES:g} minutes")
    series: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    began = time.monotonic()
    revision = 1
    async with Load(run.gateway_port, rate=20) as steady, Load(run.gateway_port, "zero", rate=0.05) as waking:
        while (now := time.monotonic() - began) < 60 * MINUTES:
            for pid, kind in run.kinds().items():
                series[kind, pid, "memory"].append((now, rss_bytes(pid)))
                series[kind, pid, "descriptors"].append((now, descriptors(pid)))
            size = 0
            for path in run.home.root.rglob("*"):
                with suppress(OSError):
                    size += path.stat().st_blocks * 512
            series["home", 0, "disk"].append((now, size))
            if now // 60 + 1 > revision:
                revision += 1
                uri = run.model(f"changing{revision % 2}", revision % 2)
                await run.verb("deploy", "-f", run.document(uri, "changing", least=0), ok=True)
            await asyncio.sleep(10.0)
    run.judge(steady, back_s=2.0)
    run.judge(waking)
    for (kind, pid, what), points in sorted(series.items()):
        warm = [point for point in points if point[0] >= min(WARM_S, 20 * MINUTES)]
        if what == "descriptors":
            warm = [(now, min(count for then, count in warm if now - IDLE_S < then <= now)) for now, _ in warm]
        if (len(warm) < 30 and MINUTES >= 10) or len(warm) < 3:  # it came or went meanwhile
            continue
        per_hour = 3600 * linear_regression(*zip(*warm, strict=True)).slope
        unit = "" if what == "descriptors" else " MiB"
        shown = per_hour if what == "descriptors" else per_hour / 2**20
        run.notes.append(f"{what} of {kind}: {shown:+.1f}{unit} an hour")
        run.expect(per_hour <= GROWTH_PER_HOUR[what], f"{what} of {kind} ({pid}) grows by {shown:.1f}{unit} an hour")
