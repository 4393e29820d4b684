"""`platformctl version`."""

import platform

import click

import pilotlight
from platformctl import output


@click.command()
@output.output_option
def version() -> None:
    """Print the versions of this program, of Python and of the platform.

    Example: platformctl version -o json
    """
    versions = {
        "pilotlight": pilotlight.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    output.data(versions, output.columns(list(versions.items()), indent=""))
