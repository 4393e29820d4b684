"""`platformctl traffic`: shares of the requests set by hand, by revision, kept over deploys until they are reset."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import click

from pilotlight import history
from pilotlight.errors import UsageError
from platformctl import output, rollout, targets, views, waiting

if TYPE_CHECKING:
    from pilotlight.targets.target import Key, ServiceStatus, Share, Target

LATEST: Final = "latest"
SHARE: Final = re.compile(r"([^=@\s]+)=(\d{1,3})(?:@([a-z0-9-]+))?")


@click.command()
@click.argument("name")
@click.argument("shares", metavar="[REVISION=PERCENT[@TAG],…]", required=False)
@targets.options
@targets.force_option
@click.option("--reset", is_flag=True, help="As the document says again.")
@rollout.waiting_options
@output.formats("table", "json", "yaml", "wide", "name", "url")
def traffic(at: targets.At, name: str, shares: str | None, reset: bool, wait: bool, timeout: float) -> None:
    """Set which revision gets which share of the requests; `latest` is the newest, the end of a name is enough.

    Example: platformctl traffic iris 1f3a9c07=90,latest=10
    """
    if bool(shares) == reset:
        raise UsageError("shares or --reset is needed", "platformctl traffic NAME REVISION=90,latest=10")
    target, key = at.connect(), at.key(name)
    wanted = read(shares, *known(target, key)) if shares else None
    status = target.traffic(key, wanted)
    if wait and status.phase == "Progressing":
        led = waiting.Condition("led as asked", lambda status: status.phase != "Progressing")
        status = waiting.until(target, key, led, timeout, output.Ticker())
    views.show([status], one=True, default="table")


def known(target: "Target", key: "Key") -> tuple[set[str], str]:
    """Names of all revisions, those without requests too, and of the one that `latest` means (empty: unclear)."""
    status = target.status(key)
    shown = {each.name for each in status.revisions}
    return shown.union(*map(history.revisions, target.releases(key))), latest(status)


def latest(status: "ServiceStatus") -> str:
    """The newest comes first; where requests pass several workloads only the target knows whose it is."""
    workloads = {each.workload for each in status.revisions}
    return status.revisions[0].name if len(workloads) == 1 else ""


def read(text: str, names: Collection[str] = (), newest: str = "") -> "Sequence[Share]":
    """Raises UsageError for anything but shares of different revisions that add up to 100."""
    from pilotlight.targets.target import Share

    found = [SHARE.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"{text} is not understood", "write REVISION=PERCENT,…, such as 1f3a9c07=90,latest=10")
    shares = [Share(named(each[1], names), int(each[2]), each[3] or "") for each in found if each]
    total = sum(share.percent for share in shares)
    if total != 100:
        raise UsageError(f"the shares add up to {total}, must be 100")
    meant = [newest or LATEST if share.revision == LATEST else share.revision for share in shares]
    twice = sorted({name for name in meant if meant.count(name) > 1})
    if twice:
        also = " (latest is that one)" if twice[0] == newest else ""
        raise UsageError(f"{twice[0]} is named twice{also}", "give each revision one share")
    return shares


def named(text: str, names: Collection[str]) -> str:
    """The revision whose name ends so. What none has, or several have, is left for the target to judge."""
    ends = [name for name in names if name.endswith(f"-{text}")]
    return ends[0] if len(ends) == 1 and text not in names else text
