"""Settings that the operator changes while the API runs, in a file of the home folder.

`platformctl api setting` writes it; the API reads it at each use. A setting in it wins over the environment.
"""

from typing import Final

from pilotlight.targets.local.home_directory import Home

FILE: Final = "api.env"


def settings(home: Home) -> dict[str, str]:
    """Return what was set; empty without a file. Its lines are NAME=VALUE."""
    try:
        pairs = (line.partition("=") for line in (home.root / FILE).read_text().splitlines())
    except OSError:
        return {}
    return {name: value for name, equals, value in pairs if equals}
