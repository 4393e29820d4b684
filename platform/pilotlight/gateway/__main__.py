"""Command line: gateway of one machine (`--home`), router component (`route`), or gateway in a pod (`cluster`)."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway import process
from pilotlight.wire.early_sigterm import handle_sigterm

USAGE: Final = (
    "usage: python -m pilotlight.gateway (--home DIR [--tls-host HOST --tls-cert FILE [--tls-key FILE] "
    "[--tls-client-ca FILE]] | route | cluster)"
)
FLAGS: Final = ("--home", "--tls-host", "--tls-cert", "--tls-key", "--tls-client-ca")


def main(arguments: Sequence[str]) -> int:
    try:
        if list(arguments) == ["route"]:
            from pilotlight.gateway.engine_router import router_process
            from pilotlight.gateway.engine_router.settings import read

            process.run(router_process.run(read(os.environ)))
        elif list(arguments) == ["cluster"]:
            from pilotlight.gateway.cluster import cluster_gateway, settings

            process.run(cluster_gateway.run(settings.read(os.environ)))
        else:
            process.run(_serve(_flags(arguments)))
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    # Without argparse: its import would slow down a restart.
    flags = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if len(arguments) % 2 or "--home" not in flags or not set(flags) <= set(FLAGS):
        raise UsageError(USAGE)
    return flags


async def _serve(flags: dict[str, str]) -> None:
    tls = None
    if "--tls-cert" in flags:
        from pilotlight.gateway.tls import GatewayTls
        from pilotlight.wire.tls import TlsFiles

        files = TlsFiles(flags["--tls-cert"], flags.get("--tls-key", ""), flags.get("--tls-client-ca", ""))
        tls = GatewayTls(files, flags.get("--tls-host", "127.0.0.1"))
    await process.Gateway(Path(flags["--home"]), tls).run()


if __name__ == "__main__":
    handle_sigterm()
    sys.exit(main(sys.argv[1:]))
