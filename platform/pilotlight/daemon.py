"""`python -m pilotlight.daemon`: the control process of the embedded platform. Puts API and engine together.

One per home folder: it holds a lock for as long as it lives, and a second one gives way. Its end is either asked for
over the API (everything stops) or by a signal (replicas and gateway live on, and the next one takes them over).
"""

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway import loop
from pilotlight.targets.local.home import ENV_HOME, Home, home

HOLDER: Final = "the control process"  # of canaries; the lock of the home folder lets there be one only
log = logging.getLogger("pilotlight.daemon")


@dataclass(frozen=True, slots=True)
class Options:
    home: Home
    gateway_port: int
    api_port: int
    service_ports: int
    prometheus: str
    pilot_light: bool
    zero_grace_s: float

    def command(self) -> tuple[str, ...]:
        """What starts the same control process again."""
        flags = (
            "--gateway-port", self.gateway_port, "--api-port", self.api_port, "--service-ports", self.service_ports,
            "--scale-to-zero-grace", self.zero_grace_s,
        )  # fmt: skip
        told = ("--prometheus", self.prometheus) if self.prometheus else ()
        dark = () if self.pilot_light else ("--no-pilot-light",)
        return (
            sys.executable, "-m", "pilotlight.daemon", "--home", str(self.home.root),
            *map(str, flags), *told, *dark,
        )  # fmt: skip


def options(argv: Sequence[str]) -> Options:
    """Flags, else variables, else what is usual."""
    variable = os.environ.get
    parser = argparse.ArgumentParser("python -m pilotlight.daemon", description=__doc__)
    parser.add_argument("--home", default=None, help="folder of the platform's state [PILOTLIGHT_HOME]")
    parser.add_argument("--gateway-port", type=int, default=_port("PILOTLIGHT_GATEWAY_PORT"))
    parser.add_argument("--api-port", type=int, default=_port("PILOTLIGHT_API_PORT"))
    parser.add_argument(
        "--service-ports", type=int, default=_port("PILOTLIGHT_SERVICE_PORTS"),
        help="first of the services' own ports; 0: they have none",
    )  # fmt: skip
    parser.add_argument(
        "--prometheus", nargs="?", const="auto", default=variable("PILOTLIGHT_PROMETHEUS", ""),
        help="an address, asked in place of our own numbers; or a program to start beside the platform",
    )  # fmt: skip
    parser.add_argument(
        "--scale-to-zero-grace", type=float, default=variable("PILOTLIGHT_SCALE_TO_ZERO_GRACE", "0"),
        help="seconds beyond the window before the last replica ends (Knative: 30)",
    )  # fmt: skip
    parser.add_argument("--no-pilot-light", action="store_true", default=variable("PILOTLIGHT_PILOT_LIGHT") == "off")
    given = parser.parse_args(argv)
    folder = Home(Path(given.home).absolute()) if given.home else home()
    return Options(
        folder, given.gateway_port or free_port(), given.api_port or free_port(), given.service_ports,
        given.prometheus, not given.no_pilot_light, given.scale_to_zero_grace,
    )  # fmt: skip


def _port(setting: str) -> int:
    from pilotlight.targets.local import launching

    return launching.port_setting(setting, launching.PORT_SETTINGS[setting])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(argv: Sequence[str]) -> int:
    try:
        given = options(argv)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    given.home.create()
    held = lock(given.home)
    if held is None:
        log.info("another control process serves %s", given.home.root)
        return 0
    from pilotlight.targets.local.supervisor.tending import rotate_all

    with held:
        rotate_all(given.home.process_logs)  # while no replica lives nobody else does
        return loop.run(serve(given))


def lock(folder: Home) -> IO[bytes] | None:
    """Held until this process ends, however it ends."""
    file = folder.lock.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


async def serve(given: Options) -> int:
    """The API's port is taken before anything is started: a start that fails leaves nothing behind."""
    from pilotlight.gateway import addresses
    from pilotlight.microservices.api.desk import DESK
    from pilotlight.targets.local import prometheus_beside
    from pilotlight.targets.local.engine import Engine

    ending = Ending()
    try:
        listener = addresses.bind(addresses.Address("127.0.0.1", given.api_port), "PILOTLIGHT_API_PORT")
        prometheus = await prometheus_beside.begin(given.home, given.prometheus, given.api_port)
        engine = Engine(given.home, _settings(given, prometheus))
    except PlatformError as error:
        log.error("%s", error)
        await prometheus_beside.end(given.home)
        return 1
    try:
        await engine.start()
        runner = await _api(engine, given, ending, listener)
    except (PlatformError, OSError) as error:
        log.error("%s", error)
        await engine.close(stop_all=False)
        await prometheus_beside.end(given.home)
        return 1
    async with _canaries(engine, given):
        await ending.wait()
    if ending.stop_all:
        await runner.app[DESK].stop_all()
    await runner.cleanup()
    await engine.close(stop_all=ending.stop_all, drain_s=ending.drain_s)
    if ending.stop_all:
        await prometheus_beside.end(given.home)
    with contextlib.suppress(FileNotFoundError):
        given.home.address.unlink()
    log.info("ended; %s", "nothing runs any more" if ending.stop_all else "replicas and gateway go on")
    return 0


def _canaries(engine: Any, given: Options) -> contextlib.AbstractAsyncContextManager[None]:
    """Looked at after every change, and at once after a start: one may be in mid-step."""
    from pilotlight.canary.bell import Bell, looked_after

    bell = Bell(rings=True)
    engine.canaries.rung = bell.ring
    if engine.canaries.running:
        bell.ring()
    return looked_after(bell, partial(_follow, given.home, bell))


def _follow(folder: Home, bell: Any) -> None:
    """What it takes is imported with the first canary: most platforms have none."""
    if not bell.wait(None):
        return
    from pilotlight.canary.loop import follow
    from pilotlight.targets.local import launching
    from pilotlight.targets.local.client import LocalTarget

    address = launching.living(folder)
    if address is not None:
        bell.ring()
        follow(LocalTarget(address), bell, HOLDER)


def _settings(given: Options, prometheus: str) -> Any:
    """`prometheus` is the address of the one that is asked, whoever runs it."""
    from pilotlight.targets.local.engine import EngineSettings

    return EngineSettings(
        given.gateway_port,
        given.service_ports,
        prometheus,
        given.pilot_light,
        given.zero_grace_s,
        respawn=given.command(),
    )


class Ending:
    """Why and how the process shall end: by the API everything does, by a signal only this process."""

    def __init__(self) -> None:
        self.stop_all = False
        self.drain_s = 0.0
        self._asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked.set)

    def stop_everything(self, drain_s: float) -> None:
        self.stop_all, self.drain_s = True, drain_s
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()


async def _api(engine: Any, given: Options, ending: Ending, listener: socket.socket) -> Any:
    from aiohttp import web

    from pilotlight.api.app import make_app
    from pilotlight.microservices.api.desk import Desk
    from pilotlight.targets.local import launching

    desk = Desk(given.home, {**os.environ, ENV_HOME: str(given.home.root)})
    app = make_app(engine, launching.token(given.home), ending.stop_everything, desk)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    launching.announce(given.home, given.api_port, given.gateway_port, engine.settings.prometheus)
    log.info("started: %s", shlex.join(given.command()))
    return runner


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
