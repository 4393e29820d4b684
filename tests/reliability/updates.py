"""Rows in which services change under load: releases, broken models, verbs at once, scale to zero."""

import asyncio
import random
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.embedded import inference_service
from tests.reliability.load import Load
from tests.reliability.scenario import BACK_S, Scenario
from tests.reliability.table import row

from pilotlight.errors import PlatformError

GROUP = "Releases and scaling"
AT_ZERO = '    autoscaling.knative.dev/initial-scale: "0"'
SOON = "    serving.knative.dev/progress-deadline: 5s"
# What is wrong with a model, and a word that `status` must say of it.
BROKEN = {
    "raises": ("raise RuntimeError('another model')", "another model"),
    "hangs": ("import time\ntime.sleep(3600)", "deadline"),
    "outgrows its memory": ("import time\nkept = b'1' * (1 << 30)\ntime.sleep(3600)", "limit"),
    "exits by a signal": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
    "is cut off": ("def predict(x", "model.py"),
    "fails its warm-up": ("INPUTS = {'x': ('FP64', [2])}\ndef predict(x): return undefined", "undefined"),
}


@row(GROUP, short=True)
async def rolling_updates(run: Scenario) -> None:
    """Ten updates of a service to a new revision, at 150 requests a second.

    None of at least 10,000 requests fails.
    """
    updates = run.times(10, 3)
    await run.serve(least=2, most=2)
    async with Load(run.gateway_port, rate=run.times(150, 60), work_s=0.002) as load:
        for revision in range(2, updates + 2):
            await run.serve(least=2, most=2, uri=run.model(f"r{revision}", revision))
            await asyncio.sleep(1.0)
        while not run.short and load.counts.sent < 10_000:
            await asyncio.sleep(0.5)
    run.judge(load, back_s=2.0)
    run.expect(len(load.answers) == updates + 1, f"revisions that answered: {dict(load.answers)}")


@row(GROUP, short=True)
async def scale_to_zero_and_back(run: Scenario) -> None:
    """Ten services with a window of 6 s get a request 6 to 12 s after the last one, five times each: at all points of
    their way to zero.

    Every request gets a response, after a cold start if necessary.
    """
    names = [f"z{number}" for number in range(run.times(10, 5))]
    uri = run.model()
    file = run.folder / "services.yaml"
    file.write_text("---\n".join(inference_service(name, "python", uri, least=0, most=1) for name in names))
    await run.verb("deploy", "-f", str(file), ok=True)
    loads = [
        Load(run.gateway_port, name, rate=1 / (6.0 + 6.0 * (index + 1) / len(names)))
        for index, name in enumerate(names)
    ]
    starts = Counter[str]()

    async def ask(load: Load) -> None:
        async with load:
            await asyncio.sleep(run.times(5, 2) / load.rate - 1)

    await asyncio.gather(*(ask(load) for load in loads))
    for load in loads:
        run.judge(load)
        starts[load.name] = sum(each.cold_starts for each in run.status(load.name).revisions)
    run.notes.append(f"{sum(starts.values())} cold starts")
    run.expect(sum(starts.values()) > 0, "no request came while a service was at zero")


@row(GROUP, short=True)
async def control_killed_in_deploys(run: Scenario) -> None:
    """The control process is killed at a random point of each of 100 deploys.

    The state is the one before or the one after, replicas are adopted, no request is lost.
    """
    serving = 1
    await run.serve(least=1)
    async with Load(run.gateway_port, rate=20) as load:
        for _ in range(run.times(100, 4)):
            revision = random.choice([each for each in (1, 2, 3, 4) if each != serving])
            file = run.document(run.model(f"r{revision}", revision))
            deploy = asyncio.create_task(run.verb("deploy", "-f", file, "--timeout", "30"))
            await asyncio.sleep(random.uniform(0.1, 1.0))
            run.kill(["control"])
            done = await deploy
            await run.until(run.answers, "the control process", 10)
            await run.until(lambda: run.ready() >= 1, "a ready replica", 20)
            answered = await settled(run)
            right = {revision} if done.returncode == 0 else {serving, revision}
            run.expect(answered <= right and len(answered) == 1, f"{serving} -> {revision}: {answered} answer")
            serving = next(iter(answered), serving)
    run.judge(load, back_s=BACK_S)


async def settled(run: Scenario, seconds: float = 20.0) -> set[int]:
    """The revisions that answer once only one does."""
    began = time.monotonic()
    while True:
        async with Load(run.gateway_port, rate=20, work_s=0.0) as probe:
            await asyncio.sleep(0.5)
        if len(probe.answers) == 1 or time.monotonic() - began > seconds:
            return set(probe.answers)


@row(GROUP)
async def broken_models(run: Scenario) -> None:
    """New releases whose model raises, hangs, outgrows its memory limit, dies by a signal, is cut off, or fails its
    warm-up.

    `deploy` fails and `status` reports why; the previous release keeps serving, nothing is lost.
    """
    await run.serve(least=1)
    async with Load(run.gateway_port, rate=20) as load:
        for number, (name, (source, word)) in enumerate(BROKEN.items()):
            folder = run.folder / f"broken{number}"
            folder.mkdir()
            (folder / "model.py").write_text(source)
            limits = "      resources: {limits: {memory: 400Mi}}"
            file = run.document(str(folder), least=1, annotations=SOON, model=limits)
            done = await run.verb("deploy", "-f", file, "--timeout", "30", ok=False)
            status = await run.verb("status", "slow", "-o", "json")
            said = done.stderr + status.stdout
            run.expect(word in said, f"model that {name}: {word!r} not said: {said.strip()[-200:]}")
    run.judge(load, back_s=1.0)
    run.expect(set(load.answers) == {1}, f"revisions that answered: {dict(load.answers)}")


@row(GROUP, short=True)
async def model_edited_in_place(run: Scenario) -> None:
    """The file of a model that serves is overwritten, the replica killed; then it is deployed, and rolled back.

    Each revision serves the bytes it was made from: the old ones until the deploy, and after the rollback again.
    """
    uri = run.model()
    await run.serve(least=1, most=1, uri=uri)
    run.model(revision=2)
    load = Load(run.gateway_port, rate=20)
    async with load:
        gone = run.kill(["replica"], signal.SIGKILL, load)
        await run.back({"replica": 1}, gone, 5.0)
        run.expect(await settled(run) == {1}, "the replacement does not serve the bytes of its revision")
        await run.verb("deploy", "-f", run.document(uri, least=1, most=1), ok=True)
        run.expect(await settled(run) == {2}, "deploying the edited model did not bring it")
        await run.verb("rollback", "slow", ok=True)
        run.expect(await settled(run) == {1}, "the rollback did not bring the old bytes back")
    run.judge(load, refused=load.allowed, back_s=BACK_S)


@row(GROUP)
async def unverified_release(run: Scenario) -> None:
    """A release whose model declares no inputs, so that no warm-up can try it, and which raises on every request.

    After 5 responses with status 500 the previous release is restored; at most 10 requests fail.
    """
    await run.serve(least=1, most=1)
    folder = run.folder / "bad"
    folder.mkdir()
    (folder / "model.py").write_text("def predict(**inputs):\n    raise RuntimeError('never worked')\n")
    done = await run.verb("deploy", "-f", run.document(str(folder), least=1, most=1), "--timeout", "30")
    run.expect("unverified" in done.stdout + done.stderr, f"deploy does not say unverified: {done.stderr[-200:]}")
    async with Load(run.gateway_port, rate=4) as load:
        await run.until(lambda: load.counts.right >= 4, "answers of the release before", 30)
    run.judge(load, refused=10)


@row(GROUP)
async def verbs_at_once(run: Scenario) -> None:
    """32 clients deploy and delete one service 200 times each, at the same time; another service has load.

    No deadlock, no error but conflict and not found, one final state; the other service loses nothing.
    """
    await run.serve(least=1, most=1)
    document = inference_service("one", "python", run.model(), least=0, most=1, annotations=AT_ZERO)
    each, errors = run.times(200, 10), Counter[str]()

    def client(number: int) -> None:
        for count in range(each):
            try:
                if (number + count) % 2:
                    run.deploy(document)
                else:
                    run.target.delete(("default", "one"))
            except PlatformError as error:
                errors[f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', str(error))[:80]}"] += 1

    async with Load(run.gateway_port, rate=20) as load:
        with ThreadPoolExecutor(32) as pool:
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(client, number)) for number in range(32)))
        await run.verb("deploy", "-f", run.document(run.model(), "one", least=0), ok=True)
        async with Load(run.gateway_port, "one", rate=5) as other:
            await asyncio.sleep(2)
        await run.verb("delete", "one", ok=True)
        await run.until(lambda: len(run.pids("replica")) == 1, "no replica of the deleted service", 30)
    run.judge(load, back_s=BACK_S)
    run.judge(other)
    odd = {text: count for text, count in errors.items() if not text.startswith(("Conflict", "NotFound"))}
    run.expect(not odd, f"other errors: {odd}")
    run.notes.append(f"{32 * each} verbs, of which {sum(errors.values())} met a conflict or no service")


@row(GROUP)
async def many_services(run: Scenario) -> None:
    """500 services are deployed at once, the control process is killed, they are deleted; another one has load.

    The one with load loses nothing, all are known after the kill, and nothing is left of the deleted ones.
    """
    count = run.times(500, 50)
    await run.serve(least=1, most=1)
    uri = run.model()
    file = run.folder / "many.yaml"
    documents = [inference_service(f"m{n}", "python", uri, least=0, most=1, annotations=AT_ZERO) for n in range(count)]
    file.write_text("---\n".join(documents))
    async with Load(run.gateway_port, rate=20) as load:
        await run.verb("deploy", "-f", str(file), "--timeout", "300", ok=True, timeout_s=400)
        run.kill(["control"])
        await run.until(run.answers, "the control process", 30)
        await run.until(lambda: len(run.target.list(None)) == count + 1, "all services to be known", 30)
        async with Load(run.gateway_port, f"m{count - 1}", rate=5) as other:
            await asyncio.sleep(2)
        await run.verb("delete", *(f"m{n}" for n in range(count)), ok=True, timeout_s=400)
        run.expect(len(run.target.list(None)) == 1, "services are left")
    run.judge(load, back_s=BACK_S)
    run.judge(other)


@row(GROUP)
async def odd_names(run: Scenario) -> None:
    """Services with 14 odd names: 63 letters, hyphens in a row, dots, slashes, capitals, spaces, other scripts.

    Names that a cluster takes work; the others are refused in one sentence, before anything changes.
    """
    good = ["a" * 50, "x---y", "default"]
    bad = ["-a", "a-", "A", "a.b", "a/b", "a b", "ä", "", "a" * 64, "..", "a_b"]
    uri = run.model()
    for number, name in enumerate([*good, *bad]):
        file = run.folder / f"odd{number}.yaml"
        text = inference_service("NAME", "python", uri, least=0, most=1).replace("name: NAME", f"name: '{name}'")
        file.write_text(text)
        await run.verb("deploy", "-f", str(file), ok=name in good)
    for name in good:
        async with Load(run.gateway_port, name, rate=5) as load:
            await asyncio.sleep(1)
        run.judge(load)
    run.expect(len(run.target.list(None)) == len(good), "a refused name was deployed")
    run.expect(not Path(run.home.root / "..").joinpath("a").exists(), "a name led out of the home")
