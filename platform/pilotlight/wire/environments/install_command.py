"""Command that installs an extra of Pilotlight into the environment of this process, for the hints of errors.

Backends import it during a cold start, so its own imports wait for the first error.
"""

import sys


def install_command(*extras: str) -> str:
    """Return the command: of this interpreter's pip, or of uv, whose environments have no pip."""
    from importlib.util import find_spec
    from shlex import join

    pip = (sys.executable, "-m", "pip", "install")
    uv = ("uv", "pip", "install", "--python", sys.executable)
    flags, source = _source()
    return join([*(pip if find_spec("pip") else uv), *flags, f"{source}[{','.join(extras)}]"])


def _source() -> tuple[list[str], str]:
    """Return flags and requirement: the checkout or wheel that Pilotlight was installed from, if it still exists."""
    import json
    from importlib import metadata
    from os.path import exists
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(metadata.distribution("pilotlight").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    path = unquote(url.path) if url.scheme == "file" else ""
    editable = origin.get("dir_info", {}).get("editable", False)
    return (["-e"] if editable else [], path) if exists(path) else ([], "pilotlight")
