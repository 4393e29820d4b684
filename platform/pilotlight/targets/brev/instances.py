"""Instances of Brev: its CLI `brev`, and programs on an instance by ssh, as brev configures it."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pilotlight.errors import PlatformError, UsageError
from pilotlight.targets.docker.run_arguments import Gpus
from pilotlight.targets.programs import CompletedCommand, Programs

CREATE_S: Final = 1800.0
LOGIN: Final = "brev login"
WHICH_GPUS: Final = "[ -e /etc/nv_tegra_release ] && echo tegra || { [ -e /dev/nvidiactl ] && echo requests; }"
# The script comes on standard input. Brev's configuration may name a command of its own and ask for a terminal.
SSH: Final = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "--")
FLAGS: Final = "https://docs.nvidia.com/brev/cli/instance-creation"


class Instance(NamedTuple):
    name: str
    id: str
    status: str


class Instances:
    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def all(self) -> list[Instance]:
        return read_instances(self.programs.run_checked(["brev", "ls", "--json"], hint=LOGIN))

    def find(self, named: str) -> Instance | None:
        return next((each for each in self.all() if named in (each.id, each.name)), None)

    def running(self, named: str) -> Instance:
        """Return an instance. Raise PlatformError unless it runs."""
        instance = self.find(named)
        if instance is None:
            raise PlatformError(f"instance_id = {named}: Brev has no such instance", "brev ls")
        if instance.status != "RUNNING":
            comes = instance.status in ("DEPLOYING", "STARTING")
            hint = "try again once brev ls shows RUNNING" if comes else f"brev start {instance.name}"
            raise PlatformError(f"instance_id = {named} is {instance.status}, must be RUNNING", hint)
        return instance

    def create(self, name: str, options: Mapping[str, str]) -> None:
        self.programs.run_checked(create_arguments(name, options), timeout_s=CREATE_S, hint=LOGIN)
        self.programs.run_checked(["brev", "refresh"], hint=LOGIN)  # writes the ssh configuration

    def delete(self, name: str) -> None:
        self.programs.run_checked(["brev", "delete", name], hint=LOGIN)

    def run(self, name: str, script: str, timeout_s: float = 60.0) -> CompletedCommand:
        return self.programs.run([*SSH, name, "bash", "-s"], script + "\n", timeout_s)

    def check_docker(self, name: str) -> None:
        done = self.run(name, "docker version --format '{{json .Server}}'")
        if done.code:
            raise PlatformError(f"Docker on the instance {name} does not answer: {done.summary}", "brev refresh")

    def gpus(self, name: str) -> Gpus:
        done = self.run(name, WHICH_GPUS)
        return "tegra" if "tegra" in done.out else "requests" if "requests" in done.out else "none"

    def host(self, name: str) -> str:
        """Return the host name of ssh's configuration."""
        lines = self.programs.run_checked(["ssh", "-G", "--", name]).splitlines()
        return next((line.split()[1] for line in lines if line.startswith("hostname ")), name)


def create_arguments(name: str, options: Mapping[str, str]) -> list[str]:
    """Return the arguments of `brev create`. Raise UsageError for two options that only Brev's console supports."""
    for option in ("cloud_cred_id", "workspace_group_id"):
        if options.get(option) and not options.get("instance_id"):
            problem = f"{option} = {options[option]}: brev create has no such flag ({FLAGS})"
            raise UsageError(problem, "create the instance in Brev's console with it, then give instance_id")
    kind = options.get("instance_type", "")
    return ["brev", "create", name, *(["--type", kind] if kind else ())]


def read_instances(text: str) -> list[Instance]:
    """Parse `brev ls --json`, which is null without instances."""
    try:
        rows: list[dict[str, Any]] = json.loads(text).get("workspaces") or []
        return [Instance(str(row["name"]), str(row["id"]), str(row["status"])) for row in rows]
    except (ValueError, KeyError, AttributeError):
        raise PlatformError("brev ls --json printed unexpected output", "update the brev CLI") from None
