"""`platformctl rollback`: deploy an earlier release again; the same content gives the same revision."""

import click

from pilotlight.release import history
from pilotlight.release.remote_pins import check_unchanged
from platformctl import completion, options, output, targets
from platformctl.services import rollout


@click.command()
@targets.name_argument()
@targets.options
@targets.force_option
@click.option(
    "--to", default="", metavar="REVISION|GENERATION", shell_complete=completion.revisions,
    help="Release to return to (default: the one before). `platformctl history NAME` lists them.",
)  # fmt: skip
@options.apply_options
@output.formats(*rollout.FORMATS)
def rollback(service_options: targets.ServiceOptions, name: str, to: str, apply_options: options.ApplyOptions) -> None:
    """Deploy an earlier release again, with all traffic. Tokens and rate limits stay as they are now.

    Example: platformctl rollback iris --to 3
    """
    target = service_options.connect()
    releases = history.releases(target, service_options.key(name))
    broken = history.failed_revisions(target.events(service_options.key(name), follow=False)).union(
        *(one.failed for one in releases)
    )
    chosen = history.previous_release(releases, to, broken)
    output.note(
        f"back to generation {chosen.generation} of {chosen.at}: {', '.join(sorted(history.revisions(chosen)))}"
    )
    note = f"rollback to generation {chosen.generation}"
    request = history.redeploy_request(chosen, None, note, newest=releases[0])
    if not target.embedded:  # there the cache has a copy
        check_unchanged(request.documents)
    rollout.run(request, target, apply_options)
