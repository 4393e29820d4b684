"""`python -m pilotlight.gateway --home DIR [--respawn COMMAND]`, or `python -m pilotlight.gateway route`.

The first is one machine's gateway, which obeys a control process; the second is a router component, which finds its
replicas by itself.
"""

import asyncio
import os
import resource
import shlex
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError, UsageError

USAGE: Final = "usage: python -m pilotlight.gateway (--home DIR [--respawn COMMAND] | route)"


def main(arguments: Sequence[str]) -> int:
    try:
        if list(arguments) == ["route"]:
            from pilotlight.gateway import router, router_settings

            _run(router.run(router_settings.read(os.environ)))
        else:
            folder, respawn = _options(arguments)
            _run(_serve(folder, respawn))
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


def _run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed, with as many open files as the system lets us have."""
    with suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
