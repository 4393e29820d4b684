"""`platformctl wait`: block until a service is ready, at zero or deleted, or until its canary ends."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from pilotlight.errors import PlatformError, RolledBack
from platformctl import options, output, targets
from platformctl.canary import follow
from platformctl.services import status_views, wait_ready

if TYPE_CHECKING:
    from pilotlight.targets.target import Key, ServiceStatus, Target

CONDITIONS: Final = ("ready", "zero", "deleted", "canary")


@click.command()
@targets.name_argument()
@targets.options
@targets.prometheus_option
@click.option("--for", "condition", type=click.Choice(CONDITIONS), default="ready", show_default=True,
              help="Condition: it serves, it has no replicas, it is gone, or its canary has ended.")  # fmt: skip
@click.option("--timeout", default=options.TIMEOUT_S, show_default=True, metavar="SECONDS", help="How long to wait.")
@output.formats("name", "json", "yaml", "table", "wide", "url")
def wait(service_options: targets.ServiceOptions, name: str, condition: str, timeout: float) -> None:
    """Wait until a service is ready, scaled to zero or deleted, or until its canary has ended.

    Exit codes: 0 it is so, 1 the service or its last deploy failed, 3 no such service, 4 not within --timeout,
    5 the deploy or the canary was rolled back.

    Example: platformctl wait iris --for ready --timeout 120
    """
    target, key, ticker = service_options.connect_read_only(), service_options.key(name), output.ProgressLog()
    try:
        if condition == "deleted":
            wait_ready.wait_deleted(target, key, timeout, ticker)
            output.data({"namespace": key[0], "name": key[1], "deleted": True}, ["/".join(key)])
            return
        if condition == "canary":
            follow.follow(target, key, ticker, timeout, timeout_s=timeout)
            status = target.status(key)
        else:
            status = wait_for(target, key, condition, timeout, ticker)
    finally:
        ticker.close()
    status_views.show([status], one=True, default="name")


def wait_for(
    target: "Target", key: "Key", condition: str, timeout: float, ticker: output.ProgressLog,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> "ServiceStatus":  # fmt: skip
    """Poll until the condition holds. Raise PlatformError if a failure lasts while `ready` is waited for."""
    failing_since: list[float] = []

    def holds(status: "ServiceStatus") -> bool:
        if condition == "zero":
            return not any(each.ready or each.starting or each.desired for each in status.revisions)
        if not status_views.deploy_failed(status):
            failing_since.clear()
        else:
            failing_since.append(clock())
        if failing_since and clock() - failing_since[0] >= wait_ready.FAILED_S:
            if status.rolled_back:
                raise RolledBack(f"{'/'.join(key)}: {status.rolled_back}", f"platformctl history {key[1]}")
            raise PlatformError(f"{'/'.join(key)} failed: {status.message}", f"platformctl logs {key[1]} --previous")
        return status.phase in wait_ready.SERVING

    named = wait_ready.Condition("ready" if condition == "ready" else "at zero", holds)
    return wait_ready.until(target, key, named, timeout, ticker, clock, sleep)
