"""`platformctl console`: open the web console with a one-time login link."""

import os
import sys
import webbrowser

import click

from platformctl import output, targets


@click.command()
@click.option("--open/--no-open", "opened", default=None, help="Open the browser (default: if there is a desktop).")
@click.option("--read-only", is_flag=True, help="Open a session that cannot change anything.")
@output.formats("url", "json", "yaml")
def console(opened: bool | None, read_only: bool) -> None:
    """Open the web console. The printed link logs in once, within five minutes.

    Example: platformctl console --no-open
    """
    open_page(opened, read_only=read_only)


def open_page(opened: bool | None, page: str = "", *, read_only: bool = False) -> None:
    """Print and open a link that logs in once and shows a page of the console, such as /dashboards."""
    target = targets.local(start=True)
    login = target.console(read_only=read_only)
    base = f"http://{target.address.host}:{target.address.port}{login.path}"
    link = f"{base}#token={login.ticket}{page}"
    shown = opened is not False and _browse(link, requested=bool(opened))
    later = f"{base}#{page}" if page else base
    output.note(f"{'opened' if shown else 'open it'} within {login.seconds} s; it logs in once. Later: {later}")
    output.data({"url": link, "console": base, "opened": shown, "seconds": login.seconds}, [link])


def _browse(link: str, *, requested: bool) -> bool:
    """Open a browser; by default only on a desktop, since a text browser would take over the terminal."""
    desktop = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (requested or desktop) and webbrowser.open(link)
