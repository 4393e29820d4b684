"""`platformctl completion`: the completion script of a shell, as click writes it."""

import click
from click.shell_completion import get_completion_class

from platformctl import main, output

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of bash, zsh or fish.

    It completes verbs, options and files, and live names: services, revisions, replicas and namespaces. The platform
    has 0.3 s to answer; one that is down completes nothing.

    \b
    Example: platformctl completion bash
      bash: eval "$(platformctl completion bash)"      in ~/.bashrc
      zsh:  eval "$(platformctl completion zsh)"       in ~/.zshrc, after compinit
      fish: platformctl completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    output.text(kind(main.platformctl, {}, "platformctl", "_PLATFORMCTL_COMPLETE").source())
