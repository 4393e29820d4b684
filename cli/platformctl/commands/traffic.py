"""`platformctl traffic`: shares of the requests set by hand, by revision, kept over deploys until they are reset."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from pilotlight.errors import UsageError
from platformctl import output, targets, views

if TYPE_CHECKING:
    from pilotlight.targets.target import ServiceStatus, Share

SHARE: Final = re.compile(r"([^=@\s]+)=(\d{1,3})(?:@([a-z0-9-]+))?")


@click.command()
@click.argument("name")
@click.argument("shares", metavar="[REVISION=PERCENT[@TAG],…]", required=False)
@targets.options
@click.option("--reset", is_flag=True, help="As the document says again.")
@output.formats("table", "json", "yaml", "wide", "name", "url")
def traffic(at: targets.At, name: str, shares: str | None, reset: bool) -> None:
    """Set which revision gets which share of the requests; `latest` is the newest, the end of a name is enough.

    Example: platformctl traffic iris 1f3a9c07=90,latest=10
    """
    if bool(shares) == reset:
        raise UsageError("shares or --reset is needed", "platformctl traffic NAME REVISION=90,latest=10")
    target, key = at.connect(), at.key(name)
    wanted = read(shares, target.status(key)) if shares else None
    views.show([target.traffic(key, wanted)], one=True, default="table")


def read(text: str, status: "ServiceStatus") -> "Sequence[Share]":
    """Raises UsageError for anything but shares that add up to 100."""
    from pilotlight.targets.target import Share

    found = [SHARE.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"{text} is not understood", "write REVISION=PERCENT,…, such as 1f3a9c07=90,latest=10")
    shares = [Share(named(each[1], status), int(each[2]), each[3] or "") for each in found if each]
    total = sum(share.percent for share in shares)
    if total != 100:
        raise UsageError(f"the shares add up to {total}, must be 100")
    return shares


def named(text: str, status: "ServiceStatus") -> str:
    """The revision whose name ends so. The target knows more of them than it shows, so it judges all others."""
    ends = [each.name for each in status.revisions if each.name.endswith(f"-{text}")]
    return ends[0] if len(ends) == 1 else text
