"""`platformctl up`: starts the embedded platform, or finds that it runs."""

import click

from platformctl import output, targets


@click.command()
@output.formats("url", "json", "yaml")
def up() -> None:
    """Start the embedded platform. Verbs that need it do so themselves.

    platformctl up
    """
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import living

    there = living(home())
    address = targets.local(start=True).address
    told = {
        "gateway": f"http://{address.host}:{address.gateway_port}", "api": f"http://{address.host}:{address.port}",
        "pid": address.pid, "version": address.version, "home": str(home().root),
    }  # fmt: skip
    output.note(f"{'runs already' if there else 'started'}: process {address.pid}, state in {told['home']}")
    output.data(told, [str(told["gateway"])])
