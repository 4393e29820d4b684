"""`platformctl up`: starts the embedded platform, or finds that it runs."""

import click

from platformctl import output, targets


@click.command()
@output.formats("url", "json", "yaml")
def up() -> None:
    """Start the embedded platform. Verbs that need it do so themselves.

    Example: platformctl up
    """
    from pilotlight.targets.local.home import home

    address = targets.local(start=True).address
    told = {
        "gateway": f"http://{address.host}:{address.gateway_port}", "api": f"http://{address.host}:{address.port}",
        "pid": address.pid, "version": address.version, "home": str(home().root),
    }  # fmt: skip
    output.note(f"process {address.pid} runs; its API is {told['api']}, its state is in {told['home']}")
    output.data(told, [str(told["gateway"])])
