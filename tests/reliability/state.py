"""Rows in which the machine fails the platform: disk, state, descriptors, processes, clock, ports."""

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.reliability.load import Load
from tests.reliability.scenario import BACK_S, Scenario, descriptors
from tests.reliability.table import Unavailable, row

GROUP = "Disk, state and limits of the machine"
LOG_BYTES = 3 * 10 * 2**20  # three files of a replica, by default
PIDS = Path("/sys/fs/cgroup/pids")
# Shifts the wall clock by the seconds in the file CLOCK_OFFSET; the monotonic clock stays.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long offset(void) {
    long value = 0; FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
    if (file) { if (fscanf(file, "%ld", &value) != 1) value = 0; fclose(file); }
    return value;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
    return code;
}
time_t time(time_t *into) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec; into->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        raise Unavailable("root, to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@row(GROUP, short=True)
async def disk_full(run: Scenario) -> None:
    """The home folder, a file system of its own, is full; replica, gateway and control process are killed meanwhile.

    Changes are rejected with a clear error, serving continues: only requests in flight fail. Changes work once there is
    space.
    """
    with mounted(run.home.root, "size=300m,mode=0700"):
        await run.serve(least=1, most=1)
        other = run.document(run.model("r2", 2), least=1, most=1)
        async with Load(run.gateway_port, rate=20) as load:
            filler = run.home.root / "filler"
            with filler.open("wb", buffering=0) as file:
                size = 1 << 20
                while size:
                    try:
                        file.write(b"\0" * size)
                    except OSError:
                        size //= 2
            for change in (["deploy", "-f", other], ["scale", "slow", "--min", "2", "--max", "2"]):
                done = await run.verb(*change, "--timeout", "15", ok=False)
                said = done.stderr
                run.expect("full" in said or "free" in said, f"the reason is not said: {said[-200:]}")
            for kind in ("replica", "gateway", "control"):
                gone = run.kill([kind], signal.SIGKILL, load)
                if kind != "control":
                    await run.back({kind: 1}, gone, 10)
                await asyncio.sleep(1.0)
            filler.unlink()
            await run.until(run.answers, "the control process", 40)
            await run.verb("deploy", "-f", other, ok=True)
        run.judge(load, refused=load.allowed, reset=load.allowed, back_s=10)
        run.finish()


@row(GROUP, short=True)
async def state_damaged(run: Scenario) -> None:
    """state.db is overwritten in the middle, cut, or loses its head; then the control process is killed.

    Serving continues; `up` and `doctor` report the reason, and `down` stops everything. A backup restores it.
    """
    for damage in ("overwritten", "cut", "headless")[: run.times(3, 1)]:
        await run.serve(least=1, most=1)
        backup = run.folder / f"{damage}.backup"
        await run.verb("backup", str(backup), ok=True)
        async with Load(run.gateway_port, rate=20) as load:
            with run.home.database.open("r+b") as file:
                if damage == "cut":
                    file.truncate(run.home.database.stat().st_size // 2)
                else:
                    file.seek(4096 if damage == "overwritten" else 0)
                    file.write(os.urandom(4096 * 4) if damage == "overwritten" else bytes(100))
            run.kill(["control"])
            await asyncio.sleep(3.0)
            await run.verb("up", ok=False)
            await run.verb("doctor", ok=False)
        run.judge(load, back_s=1.0)
        await run.verb("down", "--timeout", "5", ok=True)
        run.expect(not run.kinds(), f"{damage}: left after down: {run.kinds()}")
        await run.verb("restore", str(backup), ok=True)
        await run.verb("up", ok=True)
        await run.until(lambda: run.ready() == 1, "the service of the backup", 20)
        async with Load(run.gateway_port, rate=20) as after:
            await asyncio.sleep(1.0)
        run.judge(after)
        await run.verb("delete", "slow", ok=True)


@row(GROUP, short=True)
async def journal_lost(run: Scenario) -> None:
    """SQLite's journal beside state.db is removed and the control process killed; the home is then restored from a copy
    of state.db alone.

    Nothing is lost: each release is in the file itself, so the copy is a backup.
    """
    await run.serve(least=1, most=1)
    copy = run.folder / "copy.db"
    shutil.copy(run.home.database, copy)
    async with Load(run.gateway_port, rate=20) as load:
        run.kill(["control"])
        for suffix in ("-wal", "-shm"):
            Path(f"{run.home.database}{suffix}").unlink(missing_ok=True)
        await run.until(run.answers, "the control process", 10)
        await run.until(lambda: run.ready() == 1, "the replica to be adopted", 10)
    run.judge(load, back_s=1.0)
    await run.verb("down", "--timeout", "5", ok=True)
    await run.verb("restore", str(copy), ok=True)
    await run.verb("up", ok=True)
    await run.until(lambda: run.ready() == 1, "the service of the copy", 20)


@row(GROUP, short=True)
async def home_removed(run: Scenario) -> None:
    """The home folder of a running platform is removed.

    Serving continues; `status` reports the reason; `down` stops everything.
    """
    await run.serve(least=1, most=1)
    async with Load(run.gateway_port, rate=20) as load:
        shutil.rmtree(run.home.root)
        await asyncio.sleep(3.0)
        done = await run.verb("status", ok=False)
        run.expect("remov" in done.stdout + done.stderr, f"status says: {(done.stdout + done.stderr)[-200:]}")
    run.judge(load, back_s=1.0)
    await run.verb("down", "--timeout", "5", ok=True)
    run.expect(not run.kinds(), f"left after down: {run.kinds()}")


@row(GROUP)
async def home_read_only(run: Scenario) -> None:
    """The platform is started with a home folder on a read-only file system.

    It is refused in one sentence, and nothing runs.
    """
    with mounted(run.home.root, "size=3m,mode=0700,ro"):
        done = await run.verb("up", ok=False)
        run.expect("Read-only file system" in done.stderr, f"up says: {done.stderr}")
        run.expect(not run.kinds(), f"left: {run.kinds()}")
    run.home.root.rmdir()


@row(GROUP)
async def few_descriptors(run: Scenario) -> None:
    """The gateway may open 64 files, and 120 idle connections come.

    Requests are served; once the connections are gone, new ones are served immediately.
    """
    await run.serve(least=1, most=1)
    (gateway,) = run.pids("gateway")
    async with Load(run.gateway_port, rate=10) as load:
        await asyncio.sleep(0.5)
        resource.prlimit(gateway, resource.RLIMIT_NOFILE, (64, 64))
        idle = [await asyncio.open_connection("127.0.0.1", run.gateway_port) for _ in range(120)]
        await asyncio.sleep(10.0)
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(1.0)
    run.judge(load, back_s=15)
    run.expect(descriptors(gateway) < 64, "descriptors were not given back")


@row(GROUP)
async def few_processes(run: Scenario) -> None:
    """No process of the platform may start another one (pids cgroup) while the replica and the gateway are killed; the
    limit is lifted after 5 s.

    No response meanwhile; everything recovers within 30 s after that.
    """
    group = PIDS / f"pilotlight-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        raise Unavailable("a pids cgroup that can be written") from None
    try:
        await run.serve(least=1, most=1)
        for pid in run.kinds():
            (group / "cgroup.procs").write_text(str(pid))
        async with Load(run.gateway_port, rate=10) as load:
            (group / "pids.max").write_text("1")
            run.kill(["replica", "gateway"], signal.SIGKILL, load)
            await asyncio.sleep(5.0)
            (group / "pids.max").write_text("max")
            before = load.counts.right
            await run.until(lambda: load.counts.right > before + 10, "answers", 30)
        run.judge(load, refused=load.counts.sent, reset=load.counts.sent, lost=load.counts.sent, back_s=35)
    finally:
        run.finish()
        await run.until(lambda: not (group / "cgroup.procs").read_text().strip(), "the cgroup to be empty", 10)
        group.rmdir()


@row(GROUP)
async def clock_steps(run: Scenario) -> None:
    """The wall clock of every process steps by an hour and by a day, forward and back.

    Nothing is lost, nothing scales: only the monotonic clock decides.
    """
    library, offset = run.folder / "clock.so", run.folder / "offset"
    (run.folder / "clock.c").write_text(CLOCK)
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("a C compiler, to shift the clock")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, run.folder / "clock.c", "-ldl"], check=True)
    run.env |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
    await run.serve(least=1, most=3)
    replicas = run.pids("replica")
    async with Load(run.gateway_port, rate=15) as load:
        for seconds in (3600, -3600, 86400, -86400, 0):
            offset.write_text(f"{seconds}\n")
            await asyncio.sleep(3.0)
    run.judge(load, back_s=1.0)
    run.expect(run.pids("replica") == replicas, f"replicas {replicas} became {run.pids('replica')}")


@row(GROUP)
async def ports_taken(run: Scenario) -> None:
    """The port of the gateway, or that of the control API, belongs to another process.

    `up` fails in one sentence that names the port, and leaves nothing behind.
    """
    for name in ("PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT"):
        port = run.env[name]
        with closing(socket.create_server(("127.0.0.1", int(port)))):
            done = await run.verb("up", ok=False)
            run.expect(port in done.stderr, f"up says: {done.stderr}")
            await run.until(lambda: not run.kinds(), "nothing to be left", 10)


@row(GROUP)
async def much_output(run: Scenario) -> None:
    """A model writes 1 GB to its standard output; then its service is deleted.

    Nothing is lost; its logs take at most the documented 30 MiB and have mode 0600.
    """
    fault = "if count % 20 == 1: [os.write(1, b'x' * 1048575 + b'\\n') for _ in range(64)]"
    await run.serve(least=1, most=1, uri=run.model(fault=fault))
    async with Load(run.gateway_port, rate=20, timeout_s=60) as load:
        await asyncio.sleep(16.0)
    run.judge(load)
    files = [path for path in (run.home.logs / "default").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    run.notes.append(f"{size / 2**20:.0f} MiB of logs")
    run.expect(size <= LOG_BYTES + (2 << 20), f"logs have {size} bytes, expected at most {LOG_BYTES}")
    modes = {oct(path.stat().st_mode & 0o777) for path in files}
    run.expect(modes == {"0o600"}, f"modes {modes}")
    await run.verb("delete", "slow", ok=True)


@row(GROUP)
async def machine_restarted(run: Scenario) -> None:
    """Every process is killed, replicas and log writer too, as by a power cut; then `platformctl up` runs.

    All services are back as they were deployed within 10 s.
    """
    await run.serve()
    for pid in run.kinds():
        os.kill(pid, signal.SIGKILL)
    await run.until(lambda: not run.kinds(), "all to be gone", 5)
    await run.verb("up", ok=True)
    await run.until(lambda: run.ready() == 2, "two ready replicas", 10)
    async with Load(run.gateway_port) as load:
        await asyncio.sleep(2.0)
    run.judge(load, back_s=BACK_S)
