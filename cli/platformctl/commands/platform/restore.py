"""`platformctl restore`: put a backup in the place of the embedded platform's state, while no control process runs."""

import os
from functools import cache
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
    """Replace the platform's state by a backup; the old state is kept beside it. The platform must be down.

    Example: platformctl restore pilotlight.backup
    """
    folder = home().create()
    with without_control_process(folder):
        services, replaced = backup.restore(file, folder.database, utc_now("seconds").replace(":", ""))
        lost = restored_snapshots(folder)
    output.note(f"restored {services} service{'' if services == 1 else 's'}; platformctl up starts them")
    if replaced:
        output.note(f"the state before is kept in {replaced}")
    for path, releases in lost.items():
        needed = "; ".join(f"{name} generation {', '.join(map(str, sorted(of)))}" for name, of in releases.items())
        output.note(f"{path} has changed or is gone, and no copy is here: deploy it again (needed by {needed})")
    output.data({"services": services, "replaced": str(replaced or ""), "lost": list(lost)}, ())


def restored_snapshots(folder: Home) -> dict[str, dict[str, list[int]]]:
    """Take missing snapshots of models again from unchanged originals.

    Return the paths where that cannot be done, with the generations by service that need what was there.
    """
    snapshots, store = ModelSnapshots(folder.models), Store.open(folder.database)
    try:
        pins = sorted(store.local_pins())
    finally:
        store.close()
    digest_of = cache(lambda path: snapshots.digest(path).digest)
    lost: dict[str, dict[str, list[int]]] = {}
    for path, digest, service, generation in pins:
        if snapshots.changed_files(ModelPin(digest), path) is not None:
            continue
        if os.path.exists(path) and digest_of(path) == digest:
            snapshots.pin(path, snapshot=True)
        else:
            lost.setdefault(path, {}).setdefault(service, []).append(generation)
    return lost
