"""`platformctl restore`: put a backup in the place of the embedded platform's state, while no control process runs."""

import os
from pathlib import Path

import click

from pilotlight.k8s.model_pins import ModelPin
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.local.control_process_launcher import without_control_process
from pilotlight.targets.local.home_directory import Home, home
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.targets.local.store import backup
from pilotlight.targets.local.store.store import Store
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
        lost = restored_snapshots(folder)
    output.note(f"restored {services} service{'' if services == 1 else 's'}; platformctl up starts them")
    if replaced:
        output.note(f"the state before is kept in {replaced}")
    for path in lost:
        output.note(f"the copy of {path} is not here, and the original has changed or is gone: deploy it again")
    output.data({"services": services, "replaced": str(replaced or ""), "lost": lost}, ())


def restored_snapshots(folder: Home) -> list[str]:
    """Take missing snapshots of models again from unchanged originals; return the paths where that cannot be done."""
    snapshots, store = ModelSnapshots(folder.models), Store.open(folder.database)
    try:
        pins = sorted(store.local_pins())
    finally:
        store.close()
    lost = []
    for path, digest in pins:
        if snapshots.changed_files(ModelPin(digest), path) is not None:
            continue
        if os.path.exists(path) and snapshots.digest(path).digest == digest:
            snapshots.pin(path, snapshot=True)
        else:
            lost.append(path)
    return lost
