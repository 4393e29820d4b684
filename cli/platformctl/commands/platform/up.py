"""`platformctl up`: start the embedded platform if it is not running."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.errors import UsageError
from pilotlight.k8s.access_annotations import access
from pilotlight.k8s.names import ANNOTATION_TOKENS
from pilotlight.k8s.timestamps import utc_now
from pilotlight.prometheus.client import unavailable_reason
from pilotlight.targets.local.control_process_launcher import command, living, stored_options, without_control_process
from pilotlight.targets.local.gateway.https_settings import HttpsSettings, https_of
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.local.prometheus_process import find, is_address
from pilotlight.targets.local.store.backup import set_aside
from pilotlight.wire.tls import ReloadingTls, TlsFiles, UnusableFiles
from platformctl import output, targets
from platformctl.services import installation

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
PORT: Final = click.IntRange(0, 65535)


@click.command()
@click.option("--gateway-port", type=PORT, metavar="PORT", help="Port of the gateway (default: 8090).")
@click.option("--api-port", type=PORT, metavar="PORT", help="Port of control API and console (default: 8091).")
@click.option("--service-ports", type=PORT, metavar="PORT", help="First of the services' own ports (default: 8100).")
@click.option(
    "--prometheus", metavar="[URL|PROGRAM]", is_flag=False, flag_value="auto",
    help="Query this Prometheus instead of the platform's own metrics; without a URL, start one beside the platform.",
)  # fmt: skip
@click.option(
    "--scale-to-zero-grace", type=click.FloatRange(0), metavar="SECONDS", help="Extra idle time (default: 0)."
)
@click.option("--no-pilot-light", is_flag=True, help="Start replicas as new processes, not as forks.")
@click.option(
    "--allowed-hosts", metavar="NAME,…",
    help="Accepted names of Host and Origin, beside localhost and those of services; *: any.",
)  # fmt: skip
@click.option("--https", metavar="HOST:PORT", help="Also serve HTTPS at this address, such as 0.0.0.0:8443.")
@click.option("--tls-cert", metavar="FILE", help="With --https: certificate, PEM; reloaded when it changes.")
@click.option("--tls-key", metavar="FILE", help="With --https: key, PEM (default: in the certificate's file).")
@click.option("--tls-client-ca", metavar="FILE", help="With --https: CA that client certificates must be signed by.")
@click.option("--forget", is_flag=True, help="Start with nothing deployed; the present state is renamed and kept.")
@click.option("--foreground", is_flag=True, help="Run in the foreground, for systemd and other init systems.")
@click.option("--install", is_flag=True, help="Install a systemd unit, which starts the platform after a reboot.")
@click.option(
    "--system/--user", "system", default=None, help="With --install: of the machine (default: root), or user."
)
@click.option("--dry-run", is_flag=True, help="With --install: only print the unit.")
@output.formats("url", "json", "yaml")
def up(foreground: bool, install: bool, system: bool | None, dry_run: bool, **options: Any) -> None:
    """Start the embedded platform. Verbs that need it start it themselves.

    Example: platformctl up
    """
    check_https(options, {} if install or foreground else stored_options(home()))
    typed = flags(options)
    if (dry_run or system is not None) and not install:
        raise UsageError("--dry-run, --system and --user go with --install")
    if install and (foreground or options["forget"]):
        raise UsageError("--install does not go with --foreground or --forget")
    if install:
        installation.install(typed, system, dry_run=dry_run)
        return
    if typed and living(home()) is not None:
        raise UsageError("the platform runs already, so options cannot change it", "platformctl down, then up again")
    if options["prometheus"] and not is_address(options["prometheus"]):
        find(options["prometheus"])  # raises before a process is started that would fail without it
    if options["forget"] and (kept := forget_state()):
        output.note(f"starting with nothing deployed; what was there is kept in {kept}")
    if foreground:
        # This process becomes the control process, so that signals and the exit code are its own.
        os.execv(sys.executable, command(home(), [*typed, "--foreground"]))  # noqa: S606 - itself, no shell
    target = targets.local(start=True, flags=typed)
    address = target.address
    document = {
        "gateway": f"http://{address.host}:{address.gateway_port}", "api": f"http://{address.host}:{address.port}",
        "pid": address.pid, "version": address.version, "home": str(home().root),
    }  # fmt: skip
    output.note(f"process {address.pid} runs; its API is {document['api']}, its state is in {document['home']}")
    if (https := https_of(stored_options(home()))) is not None:
        document["https"] = f"https://{https.address}"
        output.note(f"HTTPS is served at {document['https']}")
        if is_open(https, target):
            output.note(
                f"--https {https.address}: everyone who reaches it may use services without a token; set"
                f" {ANNOTATION_TOKENS} on each, --tls-client-ca, or --https 127.0.0.1:PORT"
            )
    if address.prometheus:
        document["prometheus"] = address.prometheus
        output.note(prometheus_line(address.prometheus))
    output.data(document, [str(document["gateway"])])


def check_https(options: dict[str, Any], stored: Mapping[str, str]) -> None:
    """Check the options of HTTPS, beside the `stored` ones; the files are read before a start that would fail."""
    files = {name: options[name] for name in ("tls_cert", "tls_key", "tls_client_ca")}
    options.update({name: os.path.abspath(path) for name, path in files.items() if path})
    words = flags({name: options[name] for name in ("https", *files)})
    https = https_of({**stored, **dict(zip(words[::2], words[1::2], strict=True))}) if words else None
    if https is not None:
        try:
            ReloadingTls(TlsFiles(https.tls_cert, https.tls_key, https.tls_client_ca), ["http/1.1"])
        except UnusableFiles as error:
            raise UsageError(f"--tls-cert, --tls-key or --tls-client-ca: {error}") from None


def is_open(https: HttpsSettings, target: "LocalTarget") -> bool:
    """Whether clients on other machines need neither a certificate nor, for a service there is or will be, a token."""
    if https.host in LOOPBACK or https.tls_client_ca:
        return False
    keys = [(status.namespace, status.name) for status in target.list(None)]
    manifests = [[each.document["metadata"].get("annotations") or {} for each in target.live(key)] for key in keys]
    return not keys or not all(any(map(access, annotations)) for annotations in manifests)


def prometheus_line(url: str) -> str:
    why = unavailable_reason(url)
    return f"Prometheus at {url} does not answer: {why}" if why else f"Prometheus answers at {url}"


def forget_state() -> Path | None:
    """Rename the state of a platform that does not run; return its new place, None: there was none."""
    if not home().root.is_dir():
        return None
    with without_control_process(home()):
        return set_aside(home().database, utc_now("seconds").replace(":", ""))


def flags(options: dict[str, Any]) -> list[str]:
    """Return the given options as flags of the control process."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words
