"""Command line: gateway of one machine (`--home`), router component (`route`), or gateway in a pod (`cluster`)."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway import process
from pilotlight.wire.early_sigterm import handle_sigterm

USAGE: Final = "usage: python -m pilotlight.gateway (--home DIR | route | cluster)"


def main(arguments: Sequence[str]) -> int:
    try:
        if list(arguments) == ["route"]:
            from pilotlight.gateway.engine_router import router_process, strategy

            process.run(router_process.run(strategy.read(os.environ)))
        elif list(arguments) == ["cluster"]:
            from pilotlight.gateway.cluster import cluster_gateway, settings

            process.run(cluster_gateway.run(settings.read(os.environ)))
        else:
            process.run(_serve(_folder(arguments)))
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _folder(arguments: Sequence[str]) -> Path:
    # Without argparse: its import would slow down a restart.
    if len(arguments) != 2 or arguments[0] != "--home":
        raise UsageError(USAGE)
    return Path(arguments[1])


async def _serve(folder: Path) -> None:
    await process.Gateway(folder).run()


if __name__ == "__main__":
    handle_sigterm()
    sys.exit(main(sys.argv[1:]))
