"""Code of an org on this machine: refused, or in a sandbox that an attacker tries to leave.

Each kind of sandbox is tried for real. Kinds for users other than root are tried as another user, to whom a private
mount namespace shows this interpreter.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.availability import Unavailable
from tests.daemons.debian import unpacked

from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import sandbox, sandbox_launcher
from pilotlight.targets.local.supervisor.isolation.cgroups import Limits

pytestmark = pytest.mark.security
ATTACK = Path(__file__).with_name("sandbox_attack.py")
MEMORY_MIB, PROCESSES = 384, 64
OTHER_UID = 61000
SECRETS = {"HF_TOKEN": "operators-own", "DATABASE_URL": "postgres://u:p@db", "TAO_ADMIN_KEY": "never"}
# Run the attack to its end, and print how it ended and its log, as a replica of the target `local`, which runs the
# model's own program in place of Python.
REPLICA = """
import asyncio, json, os, sys
from pathlib import Path
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec, Probe, RevisionSpec
from pilotlight.targets.local.scaling.types import Fixed
from pilotlight.targets.local.supervisor.isolation import sandbox
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.replica_record import Launch
from pilotlight.targets.local.supervisor.supervisor import Supervisor

async def play(model, words):
    here, told = home().create(), []
    supervisor = Supervisor(here, told.append, ProcessLauncher(here, "", python=model + "/program"))
    container = ContainerSpec(
        "main", "pilotlight/predictor:1", (), tuple(words), {"INFERENCE_MODEL_PATH": model}, 8080,
        readiness=Probe("/", 8080), isolation="sandbox",
    )
    supervisor.launch(Launch("attack", RevisionSpec("evil", "evil", "w", "predictor", "r", container, Fixed(1))))
    async with asyncio.timeout(100):
        while not told or told[-1].state != "exited":
            await asyncio.sleep(0.02)
    await supervisor.close(leave_running=False)
    left = [*os.listdir(here.copies), *os.listdir(here.sockets)]
    log = Path(told[-1].log).read_text().splitlines()
    print(json.dumps([sandbox.detect().kind, told[-1].reason, log, left]))

asyncio.run(play(*json.loads(sys.argv[1])))
"""
# /root is closed to others, and this interpreter may be in it.
AS_OTHER_USER = """
python=$1; base=$2; shift 2
mount --bind "$python" "$base"; mount -t tmpfs -o mode=755 t /root
mkdir -p "$python"; mount --bind "$base" "$python"
exec setpriv --reuid $UID_ --regid $UID_ --clear-groups "$@"
"""


class Stage:
    """A home with a token, a model with the attack, another org's folder, and a victim process."""

    def __init__(self, folder: Path, kind: str, program: str) -> None:
        folder.chmod(0o755)
        self.kind, self._programs = kind, folder / "bin"
        self.home, self.other, self.model = folder / "home", folder / "acme", folder / "evil" / "model"
        for each in (self.home, self.other, self.model, folder / "base", self._programs):
            each.mkdir(parents=True)
        if program:  # it may be in a folder that is closed to others
            shutil.copy(program, self._programs)
        self.home.chmod(0o700)
        (self.home / "token").write_text("opens everything")
        (self.other / "secret").write_text("weights")
        shutil.copy(ATTACK, self.model)
        script = f'#!/bin/sh\nshift 3\nexec {sys.executable} {self.model / ATTACK.name} "$@"\n'
        (self.model / "program").write_text(script)
        (self.model / "program").chmod(0o755)
        self._base = folder / "base"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.home / "s"))
        self._socket.listen()
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind("\0" + self.home.parent.name)
        self._abstract.listen()
        self.victim = subprocess.Popen(["sleep", "600"], user=None if self._root else OTHER_UID)
        if not self._root:
            for path in (self.home, *self.home.iterdir()):
                os.chown(path, OTHER_UID, OTHER_UID)

    @property
    def _root(self) -> bool:
        return self.kind == "own uid" or os.geteuid() != 0

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        self._socket.close()
        self._abstract.close()
        Limits(Home(self.home)).sweep(())  # the control group of its home

    def targets(self) -> dict[str, Any]:
        return {
            "home": str(self.home), "other": str(self.other), "model": str(self.model), "victim": self.victim.pid,
            "unix_socket": str(self.home / "s"), "abstract": self._abstract.getsockname().decode(),
        }  # fmt: skip

    def run(self, *words: str, env: Mapping[str, str] = {}) -> tuple[str, list[dict[str, Any]], list[str]]:
        """Return why it ended, the lines that it printed, and what was left of it."""
        call = [sys.executable, "-c", REPLICA, json.dumps([str(self.model), words])]
        if not self._root:
            script = AS_OTHER_USER.replace("$UID_", str(OTHER_UID))
            other = ["sh", "-ec", script, "sh", sys.base_prefix, str(self._base)]
            call = ["unshare", "--mount", "--propagation", "private", *other, *call]
        limits = {sandbox.ENV_MEMORY: f"{MEMORY_MIB}Mi", sandbox.ENV_PROCESSES: str(PROCESSES)}
        path = {
            "PATH": f"{self._programs}:/usr/bin:/bin:/usr/sbin",
            "PILOTLIGHT_HOME": str(self.home),
            "HOME": str(self.home),
        }
        done = subprocess.run(
            call, env={**SECRETS, **path, **limits, **env}, cwd="/", capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        kind, reason, tail, left = json.loads(done.stdout)
        assert kind == self.kind, (kind, reason, tail)
        return reason, [json.loads(line) for line in tail if line.startswith("{")], left


@cache
def bubblewrap() -> str:
    try:
        return shutil.which("bwrap") or str(unpacked("bubblewrap") / "usr/bin/bwrap")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["own uid", "user namespace", "bubblewrap"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    kind, program = request.param, ""
    if sys.platform != "linux":
        pytest.skip("needs Linux")
    if kind == "own uid" and os.geteuid() != 0:
        pytest.skip("needs root")
    if not sandbox.detect().kind:
        pytest.skip(f"neither root nor user namespaces: {sandbox.detect().reason}")
    if kind == "bubblewrap":
        program = bubblewrap()
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        made = Stage(Path(folder), kind, program)
        yield made
        made.close()


def test_an_attacker_reads_writes_and_ends_only_its_own_and_takes_only_its_share(stage: Stage) -> None:
    reason, lines, left = stage.run(json.dumps(stage.targets()))
    assert lines, reason
    told, seen = lines[0], lines[0]["seen"]
    if ctypes.CDLL(None).syscall(sandbox_launcher.SYS_LANDLOCK_CREATE_RULESET, None, 0, 1) < 6:
        del told["forbidden"]["connect to an abstract socket"]  # it needs Linux 6.12
    assert {name: result for name, result in told["forbidden"].items() if result != "refused"} == {}
    assert stage.victim.poll() is None
    assert seen["uid"] != 0
    assert int(seen["capabilities"], 16) == 0
    assert seen["no_new_privs"].strip() == "1"
    assert seen["processes"] == ["1"]
    assert not set(SECRETS) & set(seen["environ"])
    assert (seen["tmp"], seen["cache"]) == ("5", "5")
    assert len(seen["descriptors"]) <= 4  # the three, and that of the list
    assert told["files"]["mib"] <= MEMORY_MIB
    assert told["files"]["error"] == "No space left on device"
    assert told["processes"]["count"] <= PROCESSES
    assert told["processes"]["error"] == "Resource temporarily unavailable"
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and ATTACK.name.encode() in _command(pid)]
    assert left == []  # neither copy nor cache
    assert sorted(path.name for path in stage.model.iterdir()) == ["program", ATTACK.name]


def test_a_memory_bomb_ends_itself_alone(stage: Stage) -> None:
    reason, lines, _ = stage.run("memory")
    assert lines, reason
    assert max(line["mib"] for line in lines) <= MEMORY_MIB
    assert "SIGKILL" in reason or "MemoryError" in reason or "by the kernel: out of memory" in reason, reason
    assert stage.victim.poll() is None


@pytest.mark.parametrize("link", ["evil/model", "evil"])
def test_a_link_in_place_of_the_checked_model_is_not_followed(tmp_path: Path, link: str) -> None:
    kind = sandbox.detect()
    if not kind.kind or kind.bubblewrap:
        pytest.skip("needs a sandbox of our own")
    (tmp_path / "acme" / "model").mkdir(parents=True)
    (tmp_path / "evil").mkdir()
    if link == "evil":
        (tmp_path / "evil").rmdir()
    (tmp_path / link).symlink_to(tmp_path / "acme" / "model" if link != "evil" else tmp_path / "acme")
    model = str(tmp_path / "evil" / "model")
    plan = sandbox_launcher.Plan(("/bin/true",), sandbox.FIRST_UID, (*sandbox._visible(), (model, model)))
    done = subprocess.run(sandbox.command(plan), capture_output=True, text=True, timeout=60)
    assert done.returncode == 126
    assert f"the sandbox cannot be created: [Errno 40] Too many levels of symbolic links: '{model}'" in done.stderr


def _command(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""
