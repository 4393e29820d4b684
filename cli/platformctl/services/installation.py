"""Installation of the embedded platform as a systemd unit, by `up --install` and `down --uninstall`."""

import os
import shlex
from collections.abc import Sequence

from pilotlight.errors import PlatformError
from pilotlight.targets.local import systemd_unit
from pilotlight.targets.local.control_process_launcher import living
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.systemd_unit import Unit
from platformctl import output


def _unit(flags: Sequence[str], system: bool | None) -> Unit:
    """Return the unit of the machine for root, else of the user, unless `system` says which."""
    of_machine = os.getuid() == 0 if system is None else system
    return Unit(home(), of_machine, systemd_unit.systemd_version(), tuple(flags), os.environ)


def install(flags: Sequence[str], system: bool | None, *, dry_run: bool) -> None:
    """Write and enable the unit; print the commands where systemd does not run. Idempotent."""
    unit = _unit(flags, system)
    if dry_run:
        output.data({"unit": str(unit.path), "text": unit.text()}, unit.text().splitlines())
        return
    running = living(home()) is not None
    commands = unit.commands(install=True, start=not running)
    enabled = systemd_unit.runs(unit.system)
    try:
        changed = unit.write()
    except OSError as error:
        message = f"{unit.path} cannot be written: {error.strerror}"
        raise PlatformError(message, "--user writes one of your own") from None
    output.note(f"{unit.path} {'is written' if changed else 'is up to date'}")
    if enabled:
        systemd_unit.execute(commands)
    else:
        output.note("systemd does not run here; where it does, type:")
        for command in commands:
            output.note(f"  {shlex.join(command)}")
    if running:
        output.note("the platform runs already; systemd starts it at the next boot, or after platformctl down")
    typed = list(map(shlex.join, commands))
    output.data({"unit": str(unit.path), "changed": changed, "enabled": enabled, "commands": typed}, [str(unit.path)])


def uninstall(system: bool | None) -> None:
    """Disable and remove the unit; one that is not there is no error."""
    unit = _unit((), system)
    if not unit.path.exists():
        output.note(f"{unit.path} does not exist: the platform is not installed")
        return
    disable, reload = unit.commands(install=False, start=False)
    runs = systemd_unit.runs(unit.system)
    if runs:
        systemd_unit.execute([disable])
    try:
        unit.path.unlink(missing_ok=True)
    except OSError as error:
        raise PlatformError(f"{unit.path} cannot be removed: {error.strerror}") from None
    if runs:
        systemd_unit.execute([reload])
    output.note(f"{unit.path} is removed")
