"""`platformctl down`: stop the embedded platform and everything it runs; `up` restores what was deployed."""

import os
import signal
from typing import TYPE_CHECKING

import click

from pilotlight import __version__
from pilotlight.errors import PlatformError, TimedOut, UsageError
from pilotlight.targets.local.control_process_launcher import (
    answers,
    leftovers,
    living,
    record_stopped,
    wait_exit,
    wait_parent_exit,
)
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.home_shutdown import end_processes
from pilotlight.targets.local.supervisor.process_inspection import home_processes
from platformctl import output, targets
from platformctl.services import installation

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget

# After the drain: time for the control process to save its state and stop its gateway.
MARGIN_S = 10.0


@click.command()
@click.option(
    "--timeout", default=30.0, show_default=True, metavar="SECONDS", help="Time for requests in flight to finish."
)
@click.option("--uninstall", is_flag=True, help="Remove the systemd unit too.")
@click.option("--system/--user", "system", default=None, help="With --uninstall: unit of the machine, or of the user.")
@output.formats("table", "json")
def down(timeout: float, uninstall: bool, system: bool | None) -> None:
    """Stop all services, the gateway and the control process. `up` starts the same services again.

    Example: platformctl down
    """
    if system is not None and not uninstall:
        raise UsageError("--system and --user go with --uninstall")
    if uninstall:
        installation.uninstall(system)
    if not is_running():
        record_stopped(home())
        sweep_launchers(only_with_traces=True)
        output.note("the platform is not running")
        output.data({"ended": [], "replicas": 0}, ())
        return
    end_if_stuck()
    try:
        target = targets.local(start=True)
    except PlatformError as error:
        # It cannot start: its state is damaged, was removed, or another program has its port.
        output.note(f"{error}; ending its processes by their pids")
        record_stopped(home())
        processes = end_processes(home(), timeout)
        sweep_launchers()
        replicas = {role for role in processes.values() if role.startswith("replica ")}
        output.note(f"ended {', '.join(f'{role} (pid {pid})' for pid, role in processes.items())}")
        output.data({"ended": [], "replicas": len(replicas), "pids": list(processes)}, ())
        return
    names, count = shut_down(target, timeout)
    plurals = ["" if number == 1 else "s" for number in (len(names), count)]
    output.note(f"ended {len(names)} service{plurals[0]} with {count} replica{plurals[1]}, gateway, API")
    output.data({"ended": names, "replicas": count}, names)


def sweep_launchers(*, only_with_traces: bool = False) -> None:
    """End containers and jobs of a home without a control process; `only_with_traces`: if it has files of theirs."""
    import asyncio

    from pilotlight.control_plane import launcher_registry

    if only_with_traces and not launcher_registry.has_traces(home()):
        return
    for message in asyncio.run(launcher_registry.sweep_all(home())):
        output.note(f"not all ended: {message}")


def shut_down(target: "LocalTarget", timeout: float) -> tuple[list[str], int]:
    """Stop the platform through its control process; return the services and the number of their replicas."""
    services = target.list_all(None) if target.address.version == __version__ else ()
    replicas = sum(each.ready + each.starting for status in services for each in status.revisions)
    target.shutdown(timeout)
    if not wait_exit(target.address, timeout + MARGIN_S):
        message = f"the control process (pid {target.address.pid}) did not end within {timeout + MARGIN_S:g} s"
        raise TimedOut(message, f"see {home().logs / 'daemon.log'}")
    wait_parent_exit(home())
    return [f"{each.namespace}/{each.name}" for each in services], replicas


def is_running() -> bool:
    """Whether a control process runs, or anything that outlived one or the folder."""
    return living(home()) is not None or leftovers(home()) or bool(home_processes(home()))


def end_if_stuck() -> None:
    """Kill an unresponsive control process; the next one adopts its replicas and gateway."""
    address = living(home())
    if address is not None and not answers(address):
        output.note(f"the control process (pid {address.pid}) does not answer and is killed")
        os.kill(address.pid, signal.SIGKILL)
        wait_exit(address, MARGIN_S)
