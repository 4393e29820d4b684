"""Settings and start of the standalone control API for `platformctl api`."""

import asyncio
import logging
import os
from pathlib import Path

from pilotlight.errors import UsageError
from platformctl import output, targets


def serve(
    host: str, port: int, target: str, tls_cert: str | None, tls_key: str | None, token_file: str | None
) -> None:  # fmt: skip
    """Serve until a signal ends it."""
    from pilotlight.api.standalone import LOOPBACK, Settings
    from pilotlight.api.standalone import serve as served
    from pilotlight.targets.local.home import home

    folder = home().create()
    settings = Settings(
        folder, _token(token_file), target, host, port, tls_cert or "", tls_key or "", os.environ,
        lambda address: output.data({"url": address}, [address]),
    )  # fmt: skip
    if host not in LOOPBACK and not tls_cert:
        output.note("without --tls-cert tokens travel in the clear: let something before it end TLS")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(served(targets.connect(target), settings))


def _token(file: str | None) -> str:
    """Return the operator token of the file, else of the home folder, where one is created if missing."""
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import token

    if file is None:
        return token(home())
    read = Path(file).read_text().strip()
    if len(read) < 16:
        raise UsageError(f"--token-file {file} holds {len(read)} characters, must be at least 16")
    return read
