"""`platformctl down`: ends the embedded platform and everything it runs. What was deployed comes back with `up`."""

import os
import signal

import click

from pilotlight.errors import TimedOut
from platformctl import output, targets

# Beyond the drain: the control process writes its state and ends its gateway.
MARGIN_S = 10.0


@click.command()
@click.option("--timeout", default=30.0, show_default=True, metavar="SECONDS", help="For requests to finish.")
@output.formats("table", "json")
def down(timeout: float) -> None:
    """Stop all services, the gateway and the control process. What was deployed comes back with `up`.

    Example: platformctl down
    """
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import wait_gone

    if not running():
        output.note("the platform is not running")
        output.data({"ended": [], "replicas": 0}, ())
        return
    end_if_stuck()
    target = targets.local(start=True)
    services = target.list(None) if target.address.version == own_version() else ()
    replicas = sum(each.ready + each.starting for status in services for each in status.revisions)
    target.shutdown(timeout)
    if not wait_gone(target.address, timeout + MARGIN_S):
        message = f"the control process (pid {target.address.pid}) did not end within {timeout + MARGIN_S:g} s"
        raise TimedOut(message, f"see {home().logs / 'daemon.log'}")
    names = [f"{each.namespace}/{each.name}" for each in services]
    output.note(f"ended {len(names)} service{'' if len(names) == 1 else 's'} with {replicas} replicas, gateway, API")
    output.data({"ended": names, "replicas": replicas}, names)


def running() -> bool:
    """The control process, or what outlived one that was killed: the next one takes that over, and can end it."""
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import leftovers, living

    return living(home()) is not None or (home().root.is_dir() and leftovers(home()))


def end_if_stuck() -> None:
    """A control process that answers nobody is killed, which loses nothing: the next one takes over what it ran."""
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import answers, living, wait_gone

    address = living(home())
    if address is not None and not answers(address):
        output.note(f"the control process (pid {address.pid}) does not answer and is killed")
        os.kill(address.pid, signal.SIGKILL)
        wait_gone(address, MARGIN_S)


def own_version() -> str:
    from pilotlight import __version__

    return __version__
