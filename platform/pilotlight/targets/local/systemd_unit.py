"""systemd unit of the embedded platform: its text, and its installation for one user or the machine.

systemd is the parent of the control process then. A crash restarts that process alone, and gateway and replicas, which
are left alone (KillMode=process), are adopted. `systemctl stop` is `platformctl down`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.supervisor.isolation.cgroups import SYSTEMD_SUBGROUP
from pilotlight.wire.shared_files import replace_file

NAME: Final = "pilotlight.service"
TEMPLATE: Final = Path(__file__).with_name(f"{NAME}.in")
SUBGROUP_VERSION: Final = 254  # the first systemd with DelegateSubgroup=
COMMAND_S: Final = 90.0  # systemctl stop waits for requests to finish
# Settings of the installing shell that the platform is to have after a reboot, too.
VARIABLES: Final = (
    "PILOTLIGHT_GATEWAY_PORT", "PILOTLIGHT_API_PORT", "PILOTLIGHT_SERVICE_PORTS", "PILOTLIGHT_PROMETHEUS",
    "PILOTLIGHT_SCALE_TO_ZERO_GRACE", "PILOTLIGHT_PILOT_LIGHT", "PILOTLIGHT_LOG_BYTES", "PILOTLIGHT_LOG_DAYS",
    "PILOTLIGHT_LOG_TOTAL_BYTES", "PILOTLIGHT_GPU_RESIDENCE", "PILOTLIGHT_GPU_PATIENCE",
    "PILOTLIGHT_PARKED_PERCENT",
)  # fmt: skip
# Settings that would break GPUs are left out: PrivateDevices, DevicePolicy and ProtectClock hide them,
# MemoryDenyWriteExecute stops compilers, ProtectKernelModules and NoNewPrivileges stop nvidia-modprobe, which creates
# the device files after a reboot. In a user's unit any hardening implies NoNewPrivileges.
_HARDENING: Final = """\
ProtectSystem=full
ProtectKernelLogs=yes
ProtectHostname=yes
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit for one home; `version` is that of systemd, `flags` are options of `platformctl up`."""

    home: Home
    system: bool = False
    version: int = 0
    flags: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    @property
    def path(self) -> Path:
        if self.system:
            return Path("/etc/systemd/system") / NAME
        config = Path(self.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return config / "systemd" / "user" / NAME

    def text(self) -> str:
        variables = {ENV_HOME: str(self.home.root)} | {
            name: self.environ[name] for name in VARIABLES if self.environ.get(name)
        }
        # DelegateSubgroup: a restarted process cannot enter a group whose subgroups have limits.
        subgroup = (f"DelegateSubgroup={SYSTEMD_SUBGROUP}",) if self.version >= SUBGROUP_VERSION else ()
        return TEMPLATE.read_text().format(
            home=_specifiers(str(self.home.root)),
            environment="\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()),
            command=f"{_quoted(self.python)} -m platformctl",
            flags="".join(f" {_quoted(flag).replace('$', '$$')}" for flag in self.flags),
            delegation="\n".join(("Delegate=yes", *subgroup)),
            log=_specifiers(str(self.home.logs / "daemon.log")),
            hardening=_HARDENING if self.system else "",
            wanted_by="multi-user.target" if self.system else "default.target",
        )

    def commands(self, *, install: bool, start: bool) -> tuple[tuple[str, ...], ...]:
        """Return the commands that enable or disable the unit; a user's platform starts at boot only with lingering."""
        systemctl = ("systemctl",) if self.system else ("systemctl", "--user")
        if not install:
            return ((*systemctl, "disable", "--now", NAME), (*systemctl, "daemon-reload"))
        enable = (*systemctl, "enable", *(("--now",) if start else ()), NAME)
        linger = () if self.system else (("loginctl", "enable-linger"),)
        return ((*systemctl, "daemon-reload"), enable, *linger)

    def write(self) -> bool:
        """Write the unit; return whether it has changed."""
        self.home.create()  # systemd opens the log in it
        if self.path.is_file() and self.path.read_text() == self.text():
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, self.text().encode(), mode=0o644)
        return True


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    escaped = _specifiers(word).replace("\\", "\\\\").replace('"', '\\"')
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", escaped, re.ASCII) else f'"{escaped}"'


def systemd_version() -> int:
    """Return the version of the installed systemd; 0: there is none."""
    try:
        done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.match(r"systemd (\d+)", done.stdout)
    return int(match[1]) if match else 0


def runs(system: bool) -> bool:
    """Whether systemd runs here, for a user its instance of that user."""
    if system:
        return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return Path(runtime, "systemd").is_dir() and shutil.which("systemctl") is not None


def execute(commands: Sequence[Sequence[str]]) -> None:
    """Run the commands. Raise PlatformError with what the first one that fails has printed."""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PlatformError(f"{' '.join(command)}: {error}") from None
        if done.returncode:
            raise PlatformError(f"{' '.join(command)}: {done.stderr.strip()}", "see systemctl status pilotlight")
