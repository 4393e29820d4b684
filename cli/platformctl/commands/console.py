"""`platformctl console`: the web console of the embedded platform, in a browser that needs no token to be typed."""

import click

from platformctl import output, targets


@click.command()
@click.option("--open/--no-open", "opened", default=None, help="In the browser of this desktop; usual where one is.")
@output.formats("url", "json", "yaml")
def console(opened: bool | None) -> None:
    """Open the web console. The link that is printed logs in once, within five minutes.

    Example: platformctl console --no-open
    """
    target = targets.local(start=True)
    made = target.console()
    base = f"http://{target.address.host}:{target.address.port}{made.path}"
    link = f"{base}#token={made.ticket}"
    shown = opened is not False and _browse(link, asked=bool(opened))
    output.note(f"{'opened' if shown else 'open it'} within {made.seconds} s; it logs in once. Later: {base}")
    output.data({"url": link, "console": base, "opened": shown, "seconds": made.seconds}, [link])


def _browse(link: str, *, asked: bool) -> bool:
    """Unasked only where a desktop is: a browser in a terminal would take it over."""
    import os
    import sys
    import webbrowser

    desktop = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (asked or desktop) and webbrowser.open(link)
