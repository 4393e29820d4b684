"""`platformctl traffic`: manual traffic split by revision, which deploys preserve until it is reset."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import click

from pilotlight.errors import UsageError
from pilotlight.release import history
from pilotlight.targets.target import Share
from platformctl import completion, options, output, targets
from platformctl.services import status_views, wait_ready

if TYPE_CHECKING:
    from pilotlight.targets.target import Key, Target

LATEST: Final = "latest"
SHARE: Final = re.compile(r"([^=@\s]+)=(\d{1,3})(?:@([a-z0-9-]+))?")


@click.command()
@targets.name_argument()
@click.argument("shares", metavar="[REVISION=PERCENT[@TAG],…]", required=False, shell_complete=completion.traffic)
@targets.options
@targets.force_option
@click.option("--reset", is_flag=True, help="Remove the override: use the traffic split of the document again.")
@options.waiting_options
@output.formats("table", "json", "yaml", "wide", "name", "url")
def traffic(
    service_options: targets.ServiceOptions, name: str, shares: str | None, reset: bool, wait: bool, timeout: float
) -> None:
    """Set the traffic split by hand; deploys keep it. `latest` is the newest revision; a name's suffix is enough.

    Example: platformctl traffic iris 1f3a9c07=90,latest=10
    """
    if bool(shares) == reset:
        raise UsageError("a traffic split or --reset is needed", "platformctl traffic NAME REVISION=90,latest=10")
    target, key = service_options.connect(), service_options.key(name)
    requested = parse_shares(shares, *known_revisions(target, key)) if shares else None
    status = target.traffic(key, requested)
    if wait and status.phase == "Progressing":
        condition = wait_ready.Condition("split as set", lambda status: status.phase != "Progressing")
        status = wait_ready.until(target, key, condition, timeout, output.ProgressLog())
    status_views.show([status], one=True, default="table")


def known_revisions(target: "Target", key: "Key") -> tuple[set[str], str]:
    """Return the names of all revisions, also without traffic, and of the latest (empty: ambiguous)."""
    status = target.status(key)
    shown = {each.name for each in status.revisions}
    # The newest is listed first; with several workloads only the target can tell.
    latest = status.revisions[0].name if len({each.workload for each in status.revisions}) == 1 else ""
    return shown.union(*map(history.revisions, target.releases(key))), latest


def parse_shares(text: str, names: Collection[str] = (), newest: str = "") -> Sequence[Share]:
    """Raises UsageError for anything but shares of different revisions that add up to 100."""
    matches = [SHARE.fullmatch(part) for part in text.split(",")]
    if not all(matches):
        raise UsageError(f"{text} is not understood", "write REVISION=PERCENT,…, such as 1f3a9c07=90,latest=10")
    shares = [Share(resolve_revision(each[1], names), int(each[2]), each[3] or "") for each in matches if each]
    total = sum(share.percent for share in shares)
    if total != 100:
        raise UsageError(f"the percentages add up to {total}, must be 100")
    meant = [newest or LATEST if share.revision == LATEST else share.revision for share in shares]
    twice = sorted({name for name in meant if meant.count(name) > 1})
    if twice:
        also = " (latest is that one)" if twice[0] == newest else ""
        raise UsageError(f"{twice[0]} is named twice{also}", "give each revision one percentage")
    return shares


def resolve_revision(text: str, names: Collection[str]) -> str:
    """Return the revision with this suffix; an unknown or ambiguous one is left for the target to judge."""
    ends = [name for name in names if name.endswith(f"-{text}")]
    return ends[0] if len(ends) == 1 and text not in names else text
