"""`platformctl api`: serve the standalone control API, and manage the keys of orgs."""

from typing import Any

import click

from platformctl import output


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens; 0.0.0.0 is everywhere.")
@click.option("--port", type=click.IntRange(0, 65535), default=8091, show_default=True, help="0: any that is free.")
@click.option(
    "--target", type=click.Choice(["local", "kubernetes"]), default="kubernetes", show_default=True,
    help="Where services and microservices run.",
)  # fmt: skip
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key, PEM.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="The operator's token.")
@click.pass_context
def api(context: click.Context, /, **settings: Any) -> None:
    """Serve the control API outside of the embedded platform, or make keys for it.

    \b
    Examples:
      platformctl api --target kubernetes --host 0.0.0.0 --tls-cert tls.crt --tls-key tls.key
      platformctl api key create acme --expires 90d
    """
    if context.invoked_subcommand is None:
        from platformctl.targets import serve

        serve(**settings)


@api.group()
def key() -> None:
    """Keys that an org logs in with."""


@key.command()
@click.argument("org")
@click.option("--expires", default="", metavar="PERIOD", help="Such as 12h or 90d; without it the key does not end.")
@output.formats("table", "json", "yaml")
def create(org: str, expires: str) -> None:
    """Make a key for an org. It is shown once and kept only as a hash.

    Example: platformctl api key create acme --expires 90d
    """
    import time

    from pilotlight.microservices.registry import accounts

    lives_s = accounts.parse_period(expires) if expires else None
    with _directory() as directory:
        shown, record = accounts.create(directory, org, time.time(), lives_s)
    output.data({"key": shown, **_row(record)}, [shown])
    output.note(f"key {record.id} of org {org}: it is not shown again; log in with it at POST /api/v1/login")


@key.command("list")
@click.argument("org", default="")
@output.formats("table", "json", "yaml")
def listed(org: str) -> None:
    """List keys, without what they open.

    Example: platformctl api key list
    """
    from pilotlight.microservices.registry import accounts

    with _directory() as directory:
        rows = [_row(each) for each in accounts.list_keys(directory, org)]
    lines = [f"{row['id']}  {row['org']}  {row['expires_at'] or 'does not end'}" for row in rows]
    output.data({"keys": rows}, lines)


@key.command()
@click.argument("id")
def delete(id: str) -> None:  # noqa: A002 - what it is called on the command line
    """Delete a key, and with it the tokens that were given for it.

    Example: platformctl api key delete 0123456789ab
    """
    from pilotlight.microservices.registry import accounts

    with _directory() as directory:
        accounts.delete(directory, id)
    output.note(f"key {id} is deleted")


def _directory() -> Any:
    from contextlib import closing

    from pilotlight.microservices.registry.database import Directory
    from pilotlight.targets.local.home import home

    return closing(Directory.open(home().create()))


def _row(key: Any) -> dict[str, str]:
    from datetime import UTC, datetime

    def timestamp(instant: float | None) -> str:
        return "" if instant is None else datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")

    return {
        "id": key.id, "org": key.org, "created_at": timestamp(key.created_at),
        "expires_at": timestamp(key.expires_at),
    }  # fmt: skip
