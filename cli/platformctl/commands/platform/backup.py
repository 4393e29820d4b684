"""`platformctl backup`: write the state of the embedded platform to one file, also while it runs."""

from pathlib import Path

import click

from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.store.backup import back_up
from platformctl import output


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output.formats("table", "json")
def backup(file: Path) -> None:
    """Write services, releases, overrides and events to a new FILE. Models and logs are not included.

    Example: platformctl backup pilotlight.backup
    """
    services = back_up(home().database, file)
    output.note(
        f"wrote {services} service{'' if services == 1 else 's'} to {file}; platformctl restore brings them back"
    )
    output.data({"file": str(file.absolute()), "services": services, "bytes": file.stat().st_size}, [str(file)])
