"""Completion of live names in a shell: services, revisions, replicas, namespaces.

The target gets LIMIT_S to answer. A platform that is down, or any error, completes nothing and prints nothing.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Final

from pilotlight.targets import table

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from pilotlight.targets.target import Key, Target

LIMIT_S: Final = 0.3
NAMESPACE: Final = "default"
Names = Callable[["Target", "click.Context"], Iterable[str]]
Completer = Callable[["click.Context", "click.Parameter", str], "list[str] | list[CompletionItem]"]


def live(names: Names) -> Completer:
    """Return a completer of click for what `names` reads from the target of the command line."""

    def complete(context: "click.Context", _: "click.Parameter", incomplete: str) -> list[str]:
        return [name for name in _read(names, context) if name.startswith(incomplete)]

    return complete


def _read(names: Names, context: "click.Context") -> list[str]:
    found: list[str] = []

    def work() -> None:
        with suppress(Exception):  # a shell shows errors in the middle of the command line
            target = _connect(context)
            found.extend(names(target, context) if target is not None else ())

    if context.params.get("target") == "kubernetes":  # imports, which take longer than a request, are not limited
        with suppress(ImportError):
            import_module("kubernetes.config")
            import_module("pilotlight.targets.kubernetes.target")
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return list(dict.fromkeys(found))


def _connect(context: "click.Context") -> "Target | None":
    """Connect to the target without starting anything; None: the platform is down."""
    name = context.params.get("target") or "local"
    if name not in table.EMBEDDED:
        return table.connect(name, os.environ, context=str(context.meta.get("platformctl.context") or ""))
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.local.control_process_launcher import living
    from pilotlight.targets.local.home_directory import home

    address = living(home())
    return LocalTarget(address, name) if address is not None else None


def _services(target: "Target", context: "click.Context") -> Iterable[str]:
    """Return NAME of services in the namespace of the command line, NAMESPACE/NAME of others."""
    own = context.params.get("namespace") or NAMESPACE
    return [each.name if each.namespace == own else f"{each.namespace}/{each.name}" for each in target.list(None)]


def _revisions(target: "Target", context: "click.Context") -> Iterable[str]:
    """Return the revisions that `rollback` can return to, then their generations."""
    from pilotlight.release.history import revisions

    releases = target.releases(_key(context))
    return [*(name for each in releases for name in sorted(revisions(each))), *(str(e.generation) for e in releases)]


def _replicas(target: "Target", context: "click.Context") -> Iterable[str]:
    rows = target.status(_key(context)).revisions
    return [*(replica.name for row in rows for replica in row.replicas), *(row.name for row in rows)]


def _key(context: "click.Context") -> "Key":
    # Before the value of an option, click's parser leaves arguments unprocessed.
    word = context.params.get("name") or next(iter(context.args), "")
    namespace, _, name = str(word).rpartition("/")
    return namespace or context.params.get("namespace") or NAMESPACE, name


services: Final = live(_services)
revisions: Final = live(_revisions)
replicas: Final = live(_replicas)
namespaces: Final = live(lambda target, _: [each.namespace for each in target.list(None)])


def targets(*others: str) -> Completer:
    """Return a completer of click for names of targets, and of others that the verb takes."""
    names = ("local", "kubernetes", *table.MODULES, *others)
    return lambda context, parameter, incomplete: [name for name in names if name.startswith(incomplete)]


def services_or_files(
    context: "click.Context", parameter: "click.Parameter", incomplete: str
) -> "list[CompletionItem]":
    """Complete services; where none matches, files."""
    from click.shell_completion import CompletionItem

    names = [CompletionItem(name) for name in services(context, parameter, incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def traffic(context: "click.Context", _: "click.Parameter", incomplete: str) -> list[str]:
    """Complete `REVISION=` after the last comma of a traffic split."""
    before, comma, last = incomplete.rpartition(",")
    names = [*(name for name in _read(_revisions, context) if not name.isdigit()), "latest"]
    return [f"{before}{comma}{name}=" for name in names if name.startswith(last)]
