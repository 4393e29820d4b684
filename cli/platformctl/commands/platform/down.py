"""`platformctl down`: stop the embedded platform and everything it runs; `up` restores what was deployed."""

import os
import signal

import click

from pilotlight import __version__
from pilotlight.errors import TimedOut
from pilotlight.targets.local.control_process_launcher import answers, leftovers, living, wait_exit
from pilotlight.targets.local.home_directory import home
from platformctl import output, targets

# After the drain: time for the control process to save its state and stop its gateway.
MARGIN_S = 10.0


@click.command()
@click.option("--timeout", default=30.0, show_default=True, metavar="SECONDS", help="For requests to finish.")
@output.formats("table", "json")
def down(timeout: float) -> None:
    """Stop all services, the gateway and the control process. What was deployed comes back with `up`.

    Example: platformctl down
    """
    if not is_running():
        output.note("the platform is not running")
        output.data({"ended": [], "replicas": 0}, ())
        return
    end_if_stuck()
    target = targets.local(start=True)
    services = target.list(None) if target.address.version == __version__ else ()
    replicas = sum(each.ready + each.starting for status in services for each in status.revisions)
    target.shutdown(timeout)
    if not wait_exit(target.address, timeout + MARGIN_S):
        message = f"the control process (pid {target.address.pid}) did not end within {timeout + MARGIN_S:g} s"
        raise TimedOut(message, f"see {home().logs / 'daemon.log'}")
    names = [f"{each.namespace}/{each.name}" for each in services]
    output.note(f"ended {len(names)} service{'' if len(names) == 1 else 's'} with {replicas} replicas, gateway, API")
    output.data({"ended": names, "replicas": replicas}, names)


def is_running() -> bool:
    """Whether a control process runs, or a gateway and replicas that outlived one."""
    return living(home()) is not None or (home().root.is_dir() and leftovers(home()))


def end_if_stuck() -> None:
    """Kill an unresponsive control process; the next one adopts its replicas and gateway."""
    address = living(home())
    if address is not None and not answers(address):
        output.note(f"the control process (pid {address.pid}) does not answer and is killed")
        os.kill(address.pid, signal.SIGKILL)
        wait_exit(address, MARGIN_S)
