"""`python -m pilotlight.control_plane.daemon`: the control process of the embedded platform, engine and control API.

One per home folder: it holds a lock while it runs, and a second one exits. A shutdown over the API stops everything; a
signal stops only this process, and the next one, started by the parent process, adopts replicas and gateway.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway import control_link, process
from pilotlight.observability.bounded_stderr import BoundedStderrHandler
from pilotlight.targets.local.gateway.https_settings import HttpsSettings, https_settings
from pilotlight.targets.local.home_directory import ENV_HOME, Home, home
from pilotlight.targets.local.scaling.gpu_admission import DEFAULT_RULES, Rules
from pilotlight.targets.local.supervisor.gpus import PARKED_PERCENT
from pilotlight.wire.machine import free_port

if TYPE_CHECKING:
    from pilotlight.gateway.listeners import Address
    from pilotlight.targets.local.control.reconciler import ReconcilerSettings

HOLDER: Final = "the control process"  # of canaries; unique by the home folder's lock
HOUSEKEEPING_S: Final = 1.0
FAILED_START_S: Final = 10.0
SIGNALLED: Final = 128 + signal.SIGTERM  # exit code in the foreground after a signal
CLEAN_LOGS_EVERY: Final = 10  # of these
GPU_FLAGS: Final = (
    (
        "--gpu-residence", "PILOTLIGHT_GPU_RESIDENCE", DEFAULT_RULES.residence_s,
        "seconds that a model keeps its GPU memory, or less where it wakes fast",
    ),
    (
        "--gpu-patience", "PILOTLIGHT_GPU_PATIENCE", DEFAULT_RULES.patience_s,
        "seconds after which busy models leave a GPU for requests that wait, or less where they wake fast",
    ),
    (
        "--parked-percent", "PILOTLIGHT_PARKED_PERCENT", PARKED_PERCENT,
        "percentage of the host memory for all parked replicas together",
    ),
)  # fmt: skip
log = logging.getLogger("pilotlight.daemon")  # control_process_launcher.py finds it in the log


@dataclass(frozen=True, slots=True)
class Options:
    home: Home
    gateway_port: int
    api_port: int
    service_ports: int
    prometheus: str
    pilot_light: bool
    zero_grace_s: float
    forget: bool = False  # start with a new state, whatever runs; only this process, not those restarted after it
    foreground: bool = False  # without a parent process: systemd, for one, restarts it
    https: HttpsSettings | None = None
    allowed_hosts: tuple[str, ...] = ()
    gpu_rules: Rules = DEFAULT_RULES
    parked_percent: float = PARKED_PERCENT

    def command(self) -> tuple[str, ...]:
        """Return the command that starts the same control process again."""
        flags = (
            "--gateway-port", self.gateway_port, "--api-port", self.api_port, "--service-ports", self.service_ports,
            "--scale-to-zero-grace", self.zero_grace_s, "--gpu-residence", self.gpu_rules.residence_s,
            "--gpu-patience", self.gpu_rules.patience_s, "--parked-percent", self.parked_percent,
        )  # fmt: skip
        prometheus = ("--prometheus", self.prometheus) if self.prometheus else ()
        pilot_light = () if self.pilot_light else ("--no-pilot-light",)
        foreground = ("--foreground",) if self.foreground else ()
        https = self.https.flags() if self.https else ()
        hosts = ("--allowed-hosts", ",".join(self.allowed_hosts)) if self.allowed_hosts else ()
        return (
            sys.executable, "-m", "pilotlight.control_plane.daemon", "--home", str(self.home.root),
            *map(str, flags), *prometheus, *pilot_light, *foreground, *https, *hosts,
        )  # fmt: skip

    def addresses(self) -> "dict[Address, str]":
        """Return the addresses that a start binds, with the option for each; a living gateway holds its own."""
        from pilotlight.gateway.listeners import Address, parse

        addresses = {Address("127.0.0.1", self.api_port): "up --api-port or PILOTLIGHT_API_PORT"}
        if not control_link.is_running(self.home.root):
            addresses[Address("127.0.0.1", self.gateway_port)] = "up --gateway-port or PILOTLIGHT_GATEWAY_PORT"
            if self.https is not None:
                addresses[parse(self.https.address)] = "up --https"
        return addresses

    def reconciler(self, prometheus: str) -> "ReconcilerSettings":
        """Return the settings of the reconciler; `prometheus` is the address of the server in use."""
        from pilotlight.targets.local.control.service_operations import ReconcilerSettings
        from pilotlight.targets.local.store.token_usage import retention

        return ReconcilerSettings(
            self.gateway_port, self.service_ports, prometheus, self.pilot_light, self.zero_grace_s,
            https=self.https, allowed_hosts=self.allowed_hosts, console=f"http://127.0.0.1:{self.api_port}/console",
            gpu_rules=self.gpu_rules,
            parked_percent=self.parked_percent,
            usage_days=retention(os.environ),
        )  # fmt: skip


def options(argv: Sequence[str]) -> Options:
    """Parse flags; defaults come from environment variables."""
    variable = os.environ.get
    parser = argparse.ArgumentParser("python -m pilotlight.control_plane.daemon", description=__doc__)
    parser.add_argument("--home", default=None, help="folder of the platform's state [PILOTLIGHT_HOME]")
    parser.add_argument("--gateway-port", type=int, default=_port("PILOTLIGHT_GATEWAY_PORT"))
    parser.add_argument("--api-port", type=int, default=_port("PILOTLIGHT_API_PORT"))
    parser.add_argument(
        "--service-ports", type=int, default=_port("PILOTLIGHT_SERVICE_PORTS"),
        help="first of the services' own ports; 0: they have none",
    )  # fmt: skip
    parser.add_argument(
        "--prometheus", nargs="?", const="auto", default=variable("PILOTLIGHT_PROMETHEUS", ""),
        help="URL of a Prometheus to query instead of the built-in metrics, or a program to start with the platform",
    )  # fmt: skip
    parser.add_argument(
        "--scale-to-zero-grace", type=float, default=variable("PILOTLIGHT_SCALE_TO_ZERO_GRACE", "0"),
        help="grace period in seconds after the window before the last replica is stopped (Knative: 30)",
    )  # fmt: skip
    for flag, name, default, text in GPU_FLAGS:
        parser.add_argument(flag, type=float, default=variable(name, default), help=text)
    parser.add_argument("--allowed-hosts", default="", help="additional allowed Host and Origin names, comma separated")
    parser.add_argument("--https", default="", help="host:port of an HTTPS listener, with the files below")
    for flag in ("--tls-cert", "--tls-key", "--tls-client-ca"):
        parser.add_argument(flag, default="")
    parser.add_argument("--no-pilot-light", action="store_true", default=variable("PILOTLIGHT_PILOT_LIGHT") == "off")
    parser.add_argument("--forget", action="store_true", help="start with nothing deployed and stop what runs")
    parser.add_argument("--foreground", action="store_true", help="run without a parent process; systemd restarts it")
    args = parser.parse_args(argv)
    folder = Home(Path(args.home).absolute()) if args.home else home()
    return Options(
        folder, args.gateway_port or free_port(), args.api_port or free_port(), args.service_ports,
        args.prometheus, not args.no_pilot_light, args.scale_to_zero_grace, args.forget,
        args.foreground,
        https_settings(args.https, args.tls_cert, args.tls_key, args.tls_client_ca),
        tuple(name.strip().lower() for name in args.allowed_hosts.split(",") if name.strip()),
        Rules(args.gpu_residence, args.gpu_patience), args.parked_percent,
    )  # fmt: skip


def _port(setting: str) -> int:
    from pilotlight.targets.local import control_process_launcher

    return control_process_launcher.port_setting(setting, control_process_launcher.PORT_SETTINGS[setting])


def main(argv: Sequence[str]) -> int:
    from pilotlight.targets.local import control_process_launcher

    try:
        settings = options(argv)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=[BoundedStderrHandler()]
    )
    try:
        settings.home.create()
    except PlatformError as error:
        log.error("not started: %s; %s", error, error.hint)
        return 1
    held = control_process_launcher.lock(settings.home)
    if held is None:
        log.info("another control process serves %s", settings.home.root)
        return _failed_in_foreground() if settings.foreground else 0
    with held:
        code = process.run(serve(settings, held.fileno()))
    return _failed_in_foreground() if settings.foreground and code == 1 else code


def _failed_in_foreground() -> int:
    """Return the exit code of a failed start, after a pause if systemd repeats the start at once."""
    if "INVOCATION_ID" in os.environ:
        time.sleep(FAILED_START_S)
    return 1


async def serve(settings: Options, held_lock: int) -> int:
    """Run until shutdown; return the exit code. Ports are checked before replicas are adopted or started."""
    from pilotlight.control_plane import launcher_registry, lost_state
    from pilotlight.gateway import listeners
    from pilotlight.targets.local import prometheus_process
    from pilotlight.targets.local.control.service_operations import Engine

    shutdown = Shutdown(settings.home)
    try:
        prometheus = await prometheus_process.start(settings.home, settings.prometheus, settings.api_port)
        engine = Engine(settings.home, settings.reconciler(prometheus), launchers=launcher_registry.factories())
    except PlatformError as error:
        log.error("not started: %s", error)
        await prometheus_process.stop(settings.home)
        return 1
    try:
        if not settings.forget:
            await lost_state.check(settings.home, engine.store)
        elif engine.store.is_new:
            for message in await launcher_registry.sweep_all(settings.home):
                log.warning("not everything stopped: %s", message)
        listeners.check_free(settings.addresses())
        listener = listeners.bind(listeners.Address("127.0.0.1", settings.api_port), "PILOTLIGHT_API_PORT")
        await engine.start()
        runner = await _api(engine, settings, shutdown, listener)
    except (PlatformError, OSError) as error:
        log.error("not started: %s", error)
        await engine.close(stop_all=False)
        await prometheus_process.stop(settings.home)
        return 1
    housekeeping = asyncio.create_task(_run_housekeeping(engine, settings, held_lock))
    async with _canaries(engine, settings):
        await shutdown.wait()
    housekeeping.cancel()
    await runner.cleanup()
    await engine.close(stop_all=shutdown.stop_all, drain_s=shutdown.drain_s)
    if shutdown.stop_all:
        await prometheus_process.stop(settings.home)
    with contextlib.suppress(FileNotFoundError):
        settings.home.address.unlink()
    log.info("ended; %s", "everything is stopped" if shutdown.stop_all else "replicas and gateway keep running")
    # systemd restarts what ends with another status; after `down` it must not.
    return SIGNALLED if settings.foreground and not shutdown.stop_all else 0


async def _run_housekeeping(engine: Any, settings: Options, held_lock: int) -> None:
    """Keep a parent process running, remove logs of deleted services, report a removed state folder once."""
    from pilotlight.control_plane import lost_state
    from pilotlight.targets.local import control_process_launcher
    from pilotlight.targets.local.supervisor import logs

    folder = settings.home
    log_settings = logs.log_settings(os.environ)
    for tick in count():
        if lost_state.folder_removed(folder, held_lock):
            log.error("%s was removed or replaced while the platform runs: %s", folder.root, lost_state.REMOVED)
            return
        if not settings.foreground and not control_process_launcher.parent_running(folder):
            try:
                control_process_launcher.start_parent(folder)
            except OSError as error:
                log.warning("the parent process cannot be started: %s; retrying in a second", error)
        if tick % CLEAN_LOGS_EVERY == 0:
            deployed = set(engine.reconciler.runs)
            await asyncio.to_thread(logs.remove_expired, folder.logs, deployed, log_settings, time.time())
        await asyncio.sleep(HOUSEKEEPING_S)


def _canaries(engine: Any, settings: Options) -> contextlib.AbstractAsyncContextManager[None]:
    """Run the canary controller, woken by every change, and at start for a canary in progress."""
    from pilotlight.canaries.controller import WakeEvent, controller_thread

    wake_event = WakeEvent(notified=True)
    engine.on_canary_change = wake_event.wake
    if engine.any_canary_running:
        wake_event.wake()
    return controller_thread(wake_event, partial(_run_canaries, settings.home, wake_event))


def _run_canaries(folder: Home, wake_event: Any) -> None:
    """Wait for the first canary before importing the controller: most platforms have none."""
    if not wake_event.wait(None):
        return
    from pilotlight.canaries.controller import run_controller
    from pilotlight.targets.local import control_process_launcher
    from pilotlight.targets.local.client import LocalTarget

    address = control_process_launcher.living(folder)
    if address is not None:
        wake_event.wake()
        run_controller(LocalTarget(address), wake_event, HOLDER)


class Shutdown:
    """Requested shutdown: of everything (API), or only of this process (signal)."""

    def __init__(self, folder: Home) -> None:
        self._home = folder
        self.stop_all = False
        self.drain_s = 0.0
        self._requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._requested.set)

    def stop_everything(self, drain_s: float) -> None:
        from pilotlight.targets.local import control_process_launcher

        control_process_launcher.record_stopped(self._home)
        self.stop_all, self.drain_s = True, drain_s
        self._requested.set()

    async def wait(self) -> None:
        await self._requested.wait()


async def _api(engine: Any, settings: Options, shutdown: Shutdown, listener: socket.socket) -> Any:
    from aiohttp import web

    from pilotlight.control_plane.app import make_app
    from pilotlight.control_plane.idle_connections import close_idle_connections
    from pilotlight.microservices.api.api_context import ApiContext
    from pilotlight.targets.local import control_process_launcher

    context = ApiContext(settings.home, {**os.environ, ENV_HOME: str(settings.home.root)})
    app = make_app(engine, control_process_launcher.token(settings.home), shutdown.stop_everything, context)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, auto_decompress=False)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    close_idle_connections(runner)
    try:
        control_process_launcher.record_restart_command(settings.home, settings.command())
    except OSError as error:
        log.warning("%s cannot be written: %s; after a crash this process is not restarted", settings.home.root, error)
    control_process_launcher.announce(
        settings.home, settings.api_port, settings.gateway_port, engine.settings.prometheus
    )
    log.info("started: %s", shlex.join(settings.command()))
    context.restore()
    return runner


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
