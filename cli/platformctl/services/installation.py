"""Installation of the embedded platform as a systemd unit, by `up --install` and `down --uninstall`."""

import os
import shlex
from collections.abc import Sequence

from pilotlight.errors import NotFound, PlatformError
from pilotlight.targets.local import systemd_unit
from pilotlight.targets.local.control_process_launcher import living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.systemd_unit import Unit
from platformctl import output


def unit(flags: Sequence[str], system: bool | None) -> Unit:
    """Return the unit of the machine for root, else of the user, unless `system` says which."""
    of_machine = os.getuid() == 0 if system is None else system
    return Unit(home(), of_machine, systemd_unit.systemd_version(), tuple(flags), os.environ)


def install(flags: Sequence[str], system: bool | None, *, dry_run: bool) -> None:
    """Write and enable the unit; print the commands where systemd does not run. Idempotent."""
    made = unit(flags, system)
    if dry_run:
        output.data({"unit": str(made.path), "text": made.text()}, made.text().splitlines())
        return
    running = living(home()) is not None
    commands = made.commands(install=True, start=not running)
    enabled = systemd_unit.runs(made.system)
    try:
        changed = made.write()
    except OSError as error:
        raise PlatformError(
            f"{made.path} cannot be written: {error.strerror}", "--user writes one of your own"
        ) from None
    output.note(f"{made.path} {'is written' if changed else 'is up to date'}")
    if enabled:
        systemd_unit.execute(commands)
    else:
        output.note("systemd does not run here; where it does, type:")
        for command in commands:
            output.note(f"  {shlex.join(command)}")
    if running:
        output.note("the platform runs already; systemd starts it at the next boot, or after platformctl down")
    document = {
        "unit": str(made.path),
        "changed": changed,
        "enabled": enabled,
        "commands": list(map(shlex.join, commands)),
    }
    output.data(document, [str(made.path)])


def uninstall(system: bool | None) -> None:
    """Disable and remove the unit; one that is not there is no error."""
    made = unit((), system)
    disable, reload = made.commands(install=False, start=False)
    if made.path.exists() and systemd_unit.runs(made.system):
        systemd_unit.execute([disable])
    try:
        made.remove()
    except NotFound as error:
        output.note(str(error))
        return
    except OSError as error:
        raise PlatformError(f"{made.path} cannot be removed: {error.strerror}") from None
    if systemd_unit.runs(made.system):
        systemd_unit.execute([reload])
    output.note(f"{made.path} is removed")
