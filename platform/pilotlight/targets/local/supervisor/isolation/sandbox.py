"""Sandbox of a model that may run code of an org: which kind this machine has, and the command that starts it.

Root gives each sandbox a uid of its own; other users have bubblewrap, or user namespaces. What it sees: the system's
programs and libraries, the predictor and the model, read-only; a private /tmp; a cache folder. The network is shared.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct, json

from pilotlight.errors import PlatformError, UsageError
from pilotlight.k8s.quantities import parse_quantity
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.isolation import sandbox_launcher
from pilotlight.targets.local.supervisor.isolation.sandbox_launcher import Plan

ENV_MEMORY: Final = "PILOTLIGHT_API_SANDBOX_MEMORY"
ENV_CPUS: Final = "PILOTLIGHT_API_SANDBOX_CPUS"
ENV_PROCESSES: Final = "PILOTLIGHT_API_SANDBOX_PROCESSES"
DEFAULTS: Final[Mapping[str, str]] = {ENV_MEMORY: "4Gi", ENV_CPUS: "2", ENV_PROCESSES: "512"}
# systemd's range for dynamic users: no account has one of these.
FIRST_UID, UIDS = 61184, 4096
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/devices/system")
# Of /etc only what programs need to load libraries, resolve names and verify certificates.
ETC: Final = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "pki", "ca-certificates", "resolv.conf",
    "hosts", "host.conf", "nsswitch.conf", "passwd", "group", "localtime",
)  # fmt: skip
DEVICES: Final = ("null", "zero", "full", "random", "urandom")
GPU_DEVICES: Final = ("nvidia*", "dri", "kfd")
PACKAGES: Final = ("pilotlight", "pilotlight_predictor")
CACHE: Final = "/cache"
PROBE_S: Final = 30.0


class Sandbox(Struct, frozen=True):
    """The kind that this machine has, or why it has none."""

    kind: str = ""
    reason: str = ""
    bubblewrap: str = ""


@cache
def detect() -> Sandbox:
    """Try the kinds of this machine by running `true` in each. Blocking; tried once per process."""
    if sys.platform != "linux":
        return Sandbox(reason="only Linux has namespaces")
    program = "" if os.geteuid() == 0 else shutil.which("bwrap") or ""
    kinds = [Sandbox("own uid" if os.geteuid() == 0 else "user namespace")]
    for sandbox in [*([Sandbox("bubblewrap", bubblewrap=program)] if program else []), *kinds]:
        plan = Plan(("/bin/true",), FIRST_UID, _visible(), bubblewrap=sandbox.bubblewrap)
        try:
            done = subprocess.run(command(plan), capture_output=True, text=True, timeout=PROBE_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return sandbox
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return Sandbox(reason=reason)


def command(plan: Plan) -> list[str]:
    return [sys.executable, "-I", "-m", sandbox_launcher.__name__, json.encode(plan).decode()]


def uid_of(number: int) -> int:
    """Return a uid for a sandbox: under root one of 4,096 that no account has, else that of this process."""
    return FIRST_UID + number % UIDS if os.geteuid() == 0 else os.geteuid()


def free_uid(home: Home, replica: str) -> int:
    """Return the uid of a replica's sandbox: under root one that owns no other replica's folder of this home."""
    used = set()
    for folder in home.sockets.iterdir():
        with suppress(FileNotFoundError):  # of a replica that has just ended
            used.add(folder.lstat().st_uid)
    first = crc32(replica.encode())  # sandboxes of other homes seldom have the same
    candidates = [uid_of(number) for number in range(first, first + UIDS)]
    return next(uid for uid in candidates if uid == os.geteuid() or uid not in used)


def plan(
    name: str, uid: int, model: tuple[str, str], command: Sequence[str], home: Home, cache: Path,
    environ: Mapping[str, str],
) -> Plan:  # fmt: skip
    """Return the plan of a replica. `model` is its file or folder, and the path at which the sandbox has it.

    A model that is no path is fetched by the sandbox. Raise where there is no sandbox, or the model is unreadable.
    """
    sandbox = detect()
    if not sandbox.kind:
        message = f"models of an org that may run code need a sandbox, which is not available: {sandbox.reason}"
        raise PlatformError(message, "serve it by docker or kubernetes, or convert it to ONNX")
    memory, cpus, processes = (_number(name, environ) for name in DEFAULTS)
    own = [model] if model[0].startswith("/") else []
    read_only = (*_visible(), *own)
    if own and uid != os.geteuid() and not _readable(model[0]):
        message = f"model_path = {model[1]}, must be readable by the user of its sandbox"
        raise UsageError(message, f"chmod -R o+rX {model[1]}")
    for source, _ in read_only:
        if home.root.is_relative_to(source):
            raise PlatformError(
                f"a sandbox would see {home.root}, which lies in {source}", "set PILOTLIGHT_HOME to another folder"
            )
    devices = [path for pattern in (*DEVICES, *GPU_DEVICES) for path in sorted(Path("/dev").glob(pattern))]
    return Plan(
        tuple(command), uid, read_only, ((str(cache.resolve()), CACHE),), tuple(map(str, devices)),
        sandbox.bubblewrap, str(home.root), name, int(memory), cpus, int(processes),
    )  # fmt: skip


def _visible() -> tuple[tuple[str, str], ...]:
    """Return what every sandbox may read: source and target, outer folders first, none twice."""
    packages = [spec.submodule_search_locations for name in PACKAGES if (spec := find_spec(name)) is not None]
    own = [sys.prefix, sys.base_prefix, *(folder for found in packages if found for folder in found)]
    wanted = [*SYSTEM, *(f"/etc/{name}" for name in ETC), *own, *(os.path.realpath(path) for path in own)]
    mounts: dict[str, str] = {}
    for target in sorted(dict.fromkeys(path for path in wanted if os.path.exists(path))):
        source = os.path.realpath(target)
        if not any(Path(target).is_relative_to(outer) and mounts[outer] == outer for outer in mounts):
            mounts[target] = source
    return tuple((source, target) for target, source in mounts.items())


def _readable(model: str) -> bool:
    """Return whether other users may read the model: its folder and the files at its top."""
    path = Path(model)
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    return all(each.stat().st_mode & (5 if each.is_dir() else 4) in (4, 5) for each in files if each.exists())


def _number(name: str, environ: Mapping[str, str]) -> float:
    text = environ.get(name) or DEFAULTS[name]
    value = parse_quantity(text)
    if value is None or value <= 0:
        raise UsageError(f"{name} = {text}, must be a number above 0, such as {DEFAULTS[name]}")
    return float(value)
