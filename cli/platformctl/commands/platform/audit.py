"""`platformctl audit`: check the audit log of the embedded platform."""

from pathlib import Path

import click

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import home
from pilotlight.wire.request_log import audit_log
from platformctl import output


@click.group()
def audit() -> None:
    """Check the audit log: who called which model when, and who deployed it.

    Example: platformctl audit verify
    """


@audit.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--expect-head", metavar="HASH", default="", help="Hash of the last record, as an earlier check printed.")
@click.option("--after", metavar="HASH", default=audit_log.START, help="Hash of the record before the first FILE.")
@output.formats("table", "json")
def verify(files: tuple[Path, ...], expect_head: str, after: str) -> None:
    """Check the hash chain of FILEs, in their order. [default: the whole log of this platform]

    Exits with code 1 and shows the first line that was changed, removed, reordered or inserted. Removed records at the
    end show only with --expect-head: note the head elsewhere.

    Example: platformctl audit verify --expect-head 9f2c…
    """
    chosen = list(files) or audit_log.files_of(home().audit)
    if not chosen:
        raise PlatformError(f"there is no audit log in {home().audit}", "annotate a service: pilotlight.dev/audit")
    try:
        found = audit_log.verify(chosen, after, expect_head)
    except audit_log.BrokenChain as error:
        raise PlatformError(str(error), "compare it with a copy") from None
    except OSError as error:
        raise PlatformError(f"{error.filename}: {error.strerror}", "check the path and its permissions") from None
    for note in found.notes:
        output.note(note)
    if not found.has_expected:
        reason = f"no record has the hash {expect_head}: records at the end were removed, or the log was replaced"
        raise PlatformError(f"{chosen[-1]}: {reason}", "compare it with a copy")
    line = f"{found.records} records, head {found.head.hash} (record {found.head.seq})"
    output.data({"records": found.records, "seq": found.head.seq, "head": found.head.hash}, [line])
