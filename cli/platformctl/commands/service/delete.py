"""`platformctl delete`: delete services; requests in flight are drained first."""

import sys

import click

from pilotlight.errors import NotFound, UsageError
from pilotlight.release import apply
from pilotlight.targets.target import Key
from platformctl import options, output, targets
from platformctl.manifest_files import check_exist
from platformctl.services import wait_ready


@click.command()
@options.NAMES
@options.FILES
@targets.options
@click.option("--ignore-not-found", is_flag=True, help="Succeed for services that do not exist.")
@options.waiting_options
@output.formats("name", "json")
def delete(
    service_options: targets.ServiceOptions,
    names: tuple[str, ...],
    files: tuple[str, ...],
    ignore_not_found: bool,
    wait: bool,
    timeout: float,
) -> None:
    """Delete services with their revisions and their history. Requests in flight are finished first.

    Example: platformctl delete iris
    """
    if not names and not files:
        raise UsageError("neither a NAME nor -f FILE is given", "platformctl list shows the services")
    keys = list(dict.fromkeys([*map(service_options.key, names), *_services_of(files, service_options.namespace)]))
    target = service_options.connect_running()
    gone = [key for key in keys if apply.generation(target, key, deploys=False)]
    missing = ["/".join(key) for key in keys if key not in gone]
    if missing and not ignore_not_found:
        unknown = f"no service is called {', '.join(missing)}; nothing was deleted"
        raise NotFound(unknown, f"platformctl list --target {target.name}")
    for key in gone:
        if note := target.delete(key):
            output.note(note)
    if wait:
        for key in gone:
            wait_ready.wait_deleted(target, key, timeout, output.ProgressLog())
    output.data({"deleted": ["/".join(key) for key in gone]}, ["/".join(key) for key in gone])


def _services_of(files: tuple[str, ...], namespace: str) -> list[Key]:
    """Return the services of documents; `namespace` is for those that name none."""
    from pilotlight.release.plan_and_render import Sources, read

    check_exist(files)
    services = read(Sources(files, stdin=sys.stdin, namespace=namespace)).services if files else ()
    return [(service.namespace, service.name) for service in services]
