"""`platformctl scale`: manual replica bounds, which deploys preserve until they are reset."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from pilotlight.errors import UsageError
from platformctl import options, output, targets
from platformctl.services import status_views, wait_ready

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus


@click.command()
@targets.name_argument()
@targets.options
@targets.force_option
@click.option(
    "--min",
    "least",
    type=click.IntRange(0),
    metavar="N",
    help="Min replicas; 0: scale to zero without requests. On this machine it raises a lower max of the manifest.",
)
@click.option("--max", "most", type=click.IntRange(1), metavar="N", help="Max replicas.")
@click.option(
    "--to", "--replicas", "exactly", type=click.IntRange(0), metavar="N", help="Exactly N replicas: --min N --max N."
)
@click.option("--reset", is_flag=True, help="Remove the override: use the bounds of the document again.")
@options.waiting_options
@output.formats("table", "json", "yaml", "wide", "name", "url")
def scale(
    service_options: targets.ServiceOptions, name: str, least: int | None, most: int | None, exactly: int | None,
    reset: bool, wait: bool, timeout: float,
) -> None:  # fmt: skip
    """Override min and max replicas of the document; deploys keep the override.

    Example: platformctl scale iris --min 1 --max 5
    """
    bounds = parse_bounds(least, most, exactly, reset)
    target, key = service_options.connect(), service_options.key(name)
    current = current_overrides(target.status(key))
    status = target.scale(key, check_bounds({**current, **bounds}) if bounds else None)
    for sentence in status.warnings:
        output.note(sentence)
    floor = bounds.get("minReplicas", 0)
    if wait and floor:
        ready = wait_ready.Condition(
            f"at {floor} ready replica{'s' * (floor != 1)}", lambda status: is_scaled(status, floor)
        )
        status = wait_ready.until(target, key, ready, timeout, output.ProgressLog())
    status_views.show([status], one=True, default="table")


def is_scaled(status: "ServiceStatus", floor: int) -> bool:
    """Whether revisions with traffic have enough ready replicas and no rollout is in progress."""
    ready = sum(each.ready for each in status.revisions if each.percent)
    return ready >= floor and status.phase in ("Ready", "Degraded")


def parse_bounds(least: int | None, most: int | None, exactly: int | None, reset: bool) -> dict[str, int]:
    """Return the bounds; empty: reset. Raises UsageError for contradictory options."""
    chosen = {name: value for name, value in (("minReplicas", least), ("maxReplicas", most)) if value is not None}
    if exactly is not None and chosen:
        raise UsageError("--to is both bounds at once: leave --min and --max out")
    if exactly == 0:
        raise UsageError("with --to 0 no replica could start", "--min 0 scales it to zero without requests")
    if exactly is not None:
        chosen = {"minReplicas": exactly, "maxReplicas": exactly}
    if reset == bool(chosen):
        raise UsageError("one of --min, --max, --to and --reset is needed" if not reset else "--reset stands alone")
    return chosen


def current_overrides(status: "ServiceStatus") -> dict[str, int]:
    """Return the bounds that an earlier `scale` has set."""
    written: Mapping[str, object] = next(iter(status.overrides.values()), {})
    return {name: int(str(written[name])) for name in ("minReplicas", "maxReplicas") if name in written}


def check_bounds(bounds: dict[str, int]) -> dict[str, int]:
    least, most = bounds.get("minReplicas", 0), bounds.get("maxReplicas")
    if most is not None and least > most:
        raise UsageError(
            f"min is {least}, must be at most max, which is {most}", "set both: --min N --max M, with N ≤ M"
        )
    return bounds
