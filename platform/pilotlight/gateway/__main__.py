"""`python -m pilotlight.gateway --home DIR [--respawn COMMAND]`, or with `route` or `cluster` instead of options.

The first is one machine's gateway, which obeys a control process; `route` is a router component, which finds its
replicas by itself; `cluster` is the gateway in a pod, which finds all services of a cluster by itself.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pilotlight.early_end import heed_sigterm
from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway import loop

USAGE: Final = "usage: python -m pilotlight.gateway (--home DIR [--respawn COMMAND] | route | cluster)"


def main(arguments: Sequence[str]) -> int:
    try:
        if list(arguments) == ["route"]:
            from pilotlight.gateway import router, router_settings

            loop.run(router.run(router_settings.read(os.environ)))
        elif list(arguments) == ["cluster"]:
            from pilotlight.gateway.cluster import component, settings

            loop.run(component.run(settings.read(os.environ)))
        else:
            folder, respawn = _options(arguments)
            loop.run(_serve(folder, respawn))
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _options(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Two options need no parser, whose import a restart would wait for."""
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if len(arguments) % 2 or "--home" not in pairs or pairs.keys() - {"--home", "--respawn"}:
        raise UsageError(USAGE)
    return Path(pairs["--home"]), shlex.split(pairs.get("--respawn", ""))


async def _serve(folder: Path, respawn: Sequence[str]) -> None:
    from pilotlight.gateway.process import Gateway

    await Gateway(folder, respawn).run()


if __name__ == "__main__":
    heed_sigterm()
    sys.exit(main(sys.argv[1:]))
