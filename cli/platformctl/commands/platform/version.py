"""`platformctl version`."""

import platform

import click

import pilotlight
from platformctl import output


@click.command()
@output.output_option
def version() -> None:
    """Versions of this program and of what it runs on."""
    versions = {
        "pilotlight": pilotlight.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    output.data(versions, output.columns(list(versions.items()), indent=""))
