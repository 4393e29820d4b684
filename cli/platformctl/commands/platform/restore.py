"""`platformctl restore`: put a backup in the place of the embedded platform's state, while no control process runs."""

from pathlib import Path

import click

from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.control_process_launcher import without_control_process
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.store import backup
from platformctl import output


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@output.formats("table", "json")
def restore(file: Path) -> None:
    """Check FILE and make it the platform's state; the replaced one is kept beside it. The platform must be down.

    Example: platformctl restore pilotlight.backup
    """
    folder = home().create()
    with without_control_process(folder):
        services, replaced = backup.restore(file, folder.database, utc_now("seconds").replace(":", ""))
    output.note(f"restored {services} service{'' if services == 1 else 's'}; platformctl up starts them")
    if replaced:
        output.note(f"the state before is kept in {replaced}")
    output.data({"services": services, "replaced": str(replaced or "")}, ())
