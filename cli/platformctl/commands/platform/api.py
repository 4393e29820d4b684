"""`platformctl api`: serve the standalone control API; keys and credentials of orgs, settings read at each use."""

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from pilotlight.errors import UsageError
from pilotlight.microservices.jobs.model_isolation import ENV_CODE
from pilotlight.microservices.jobs.org_resources import DEFAULT_QUOTAS, quota
from pilotlight.microservices.media.limits import SETTINGS, limits_from
from pilotlight.microservices.registry.operator_settings import settings as read_settings
from pilotlight.targets.local.home_directory import home
from platformctl import output, targets
from platformctl.services import operator_settings

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8091, show_default=True, help="Port; 0: any free one.")
@click.option(
    "--target", type=click.Choice(["local", "kubernetes"]), default="kubernetes", show_default=True,
    help="Where services and microservices run.",
)  # fmt: skip
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Key of the certificate, PEM.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="File with the operator's token.")
@click.option(
    "--metrics-token-file", type=click.Path(exists=True, dir_okay=False),
    help="File with a token for /metrics only; needed beyond loopback.",
)  # fmt: skip
@click.pass_context
def api(context: click.Context, /, **settings: Any) -> None:
    """Serve the control API outside of the embedded platform, or manage its keys.

    \b
    Examples:
      platformctl api --target kubernetes --host 0.0.0.0 --tls-cert tls.crt --tls-key tls.key
      platformctl api key create acme --expires 90d
      platformctl api credential set acme s3-secret
    """
    if context.invoked_subcommand is None:
        _serve(**settings)


def _serve(
    host: str, port: int, target: str, tls_cert: str | None, tls_key: str | None,
    token_file: str | None, metrics_token_file: str | None,
) -> None:  # fmt: skip
    """Serve until a signal ends it."""
    import asyncio
    import logging

    from pilotlight.control_plane.api_server import LOOPBACK, Settings, serve
    from pilotlight.targets.local.control_process_launcher import living

    folder = home().create()
    if target == "local" and host in LOOPBACK and not (tls_cert or tls_key or token_file or metrics_token_file):
        running = living(folder)
        if running is None or running.port == port:
            address = targets.local(start=True, flags=() if running else ("--api-port", str(port))).address
            output.data({"url": (url := f"http://{address.host}:{address.port}")}, [url])
            output.note("the embedded platform serves this API itself, until platformctl down")
            return
    settings = Settings(
        folder, _token(token_file), target, host, port, tls_cert or "", tls_key or "",
        _read_token("--metrics-token-file", metrics_token_file) if metrics_token_file else "", os.environ,
        lambda address: output.data({"url": address}, [address]),
    )  # fmt: skip
    if host not in LOOPBACK and not tls_cert:
        output.note("without --tls-cert tokens travel in the clear: let something before it end TLS")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(targets.connect(target), settings))


def _token(file: str | None) -> str:
    """Return the operator token of the file, else of the home folder, where one is created if missing."""
    from pilotlight.targets.local.control_process_launcher import token

    return token(home()) if file is None else _read_token("--token-file", file)


def _read_token(option: str, file: str) -> str:
    text = Path(file).read_text().strip()
    if len(text) < 16:
        raise UsageError(f"{option} {file} holds {len(text)} characters, must be at least 16")
    return text


@api.group()
def key() -> None:
    """Keys that orgs log in with."""


@key.command()
@click.argument("org")
@click.option("--expires", default="", metavar="PERIOD", help="Lifetime, such as 12h or 90d (default: unlimited).")
@output.formats("table", "json", "yaml")
def create(org: str, expires: str) -> None:
    """Create a key for an org. It is printed once and stored as a hash.

    Example: platformctl api key create acme --expires 90d
    """
    import time

    from pilotlight.microservices.registry import api_keys

    lives_s = parse_period(expires) if expires else None
    with _store() as store:
        shown, record = api_keys.create(store, org, time.time(), lives_s)
    output.data({"key": shown, **_row(record)}, [shown])
    output.note(f"key {record.id} of org {org}: it is not printed again; log in with it at POST /api/v1/login")


def parse_period(text: str) -> float:
    """Parse a period such as `90d`; return seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smhdw])", text.strip())
    if match is None:
        raise UsageError(f"--expires = {text}, must be a number with s, m, h, d or w, such as 90d")
    return float(match[1]) * _SECONDS[match[2]]


@key.command("list")
@click.argument("org", default="")
@output.formats("table", "json", "yaml")
def listed(org: str) -> None:
    """List keys, without their secrets.

    Example: platformctl api key list
    """
    from pilotlight.microservices.registry import api_keys

    with _store() as store:
        rows = [_row(each) for each in api_keys.list_keys(store, org)]
    lines = [f"{row['id']}  {row['org']}  {row['expires_at'] or 'does not end'}" for row in rows]
    output.data({"keys": rows}, lines)


@key.command()
@click.argument("id")
def delete(id: str) -> None:  # noqa: A002 - what it is called on the command line
    """Delete a key and the tokens issued for it.

    Example: platformctl api key delete 0123456789ab
    """
    from pilotlight.microservices.registry import api_keys

    with _store() as store:
        api_keys.delete(store, id)
    output.note(f"key {id} is deleted")


@api.group()
def credential() -> None:
    """Credentials of orgs for their storage, which may change while the API runs."""


@credential.command("set")
@click.argument("org")
@click.argument("name")
@click.option("--from-env", default="", metavar="VARIABLE", help="Read the value from this variable instead of stdin.")
@output.formats("table", "json", "yaml")
def set_credential(org: str, name: str, from_env: str) -> None:
    """Store a credential from stdin or a prompt; print its reference for workspaces.

    Example: platformctl api credential set acme s3-secret < secret.txt
    """
    if from_env:
        value = os.environ.get(from_env, "")
    else:
        value = click.prompt(name, hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    home().create()
    reference = operator_settings.set_credential(org, name, value, os.environ)
    output.data({"reference": reference}, [reference])


@credential.command("list")
@click.argument("org", default="")
@output.formats("table", "json", "yaml")
def list_credentials(org: str) -> None:
    """List credentials by their references, without values.

    Example: platformctl api credential list
    """
    references = [f"file:{owner}/{name}" for owner, name in operator_settings.credentials(org, os.environ)]
    output.data({"credentials": references}, references)


@credential.command("delete")
@click.argument("org")
@click.argument("name")
def delete_credential(org: str, name: str) -> None:
    """Delete a credential.

    Example: platformctl api credential delete acme s3-secret
    """
    operator_settings.delete_credential(org, name, os.environ)
    output.note(f"credential {name} of org {org} is deleted")


@api.group()
def setting() -> None:
    """Settings of media, workspaces and quotas, which may change while the API runs."""


@setting.command("set")
@click.argument("assignment", metavar="NAME=VALUE")
def set_setting(assignment: str) -> None:
    """Set a variable of the API, over that of its environment. NAME alone removes it.

    Example: platformctl api setting set PILOTLIGHT_MEDIA_ROOTS=/data/images,/data/videos
    """
    name, equals, value = assignment.partition("=")
    if name not in (names := [*SETTINGS, *DEFAULT_QUOTAS, ENV_CODE]):
        raise UsageError(f"{name} is no setting that can change, must be one of {', '.join(names)}")
    if not value.isprintable():
        raise UsageError(f"{name} has a control character in it")
    limits_from({name: value})
    if name in DEFAULT_QUOTAS:
        quota(name, {name: value})
    operator_settings.change_setting(home().create(), name, value if equals else None)
    output.note(f"{name} is {'set' if equals else 'as in the environment'}; the API uses it from its next request on")


@setting.command("list")
@output.formats("table", "json", "yaml")
def list_settings() -> None:
    """List the variables that were set.

    Example: platformctl api setting list
    """
    settings = read_settings(home())
    output.data(settings, [f"{name}={value}" for name, value in settings.items()])


def _store() -> Any:
    from contextlib import closing

    from pilotlight.microservices.registry.database import OrgStore

    return closing(OrgStore.open(home().create()))


def _row(key: Any) -> dict[str, str]:
    from datetime import UTC, datetime

    from pilotlight.k8s.timestamps import format_utc

    def timestamp(instant: float | None) -> str:
        return "" if instant is None else format_utc(datetime.fromtimestamp(instant, UTC), "seconds", "+00:00")

    return {
        "id": key.id, "org": key.org, "created_at": timestamp(key.created_at),
        "expires_at": timestamp(key.expires_at),
    }  # fmt: skip
