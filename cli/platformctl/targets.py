"""Where services run, as verbs name it: one table of targets, and the options that every verb about a service has.

`@targets.options` gives a verb one argument, `at: At`. Packages add targets by the entry point group
`pilotlight.targets`: a function of the folder's environment that returns a `pilotlight.targets.target.Target`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from pilotlight.errors import NotFound, UsageError
from platformctl import output

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.target import Key, Target

ENTRY_POINTS: Final = "pilotlight.targets"
# Known by name, so that whoever asks for one learns what to do instead.
PLANNED: Final[Mapping[str, str]] = {
    "kubernetes": "apply what platformctl render prints: platformctl render -f FILE | kubectl apply -f -",
    "docker": "run it here with --target local",
    "slurm": "run it here with --target local",
    "lepton": "run it here with --target local",
    "brev": "run it here with --target local",
}


@dataclass(frozen=True, slots=True)
class At:
    """The target and the namespace as they were typed."""

    target: str
    namespace: str

    def connect(self, *, start: bool = True) -> "Target":
        """`start`: whether a platform that does not run is started for this."""
        return connect(self.target, start=start)

    def look(self) -> "Target":
        """For verbs that only look: where nothing was ever deployed, nothing is started to find that out."""
        return connect(self.target, start=_deployed_before())

    def key(self, name: str) -> "Key":
        """`iris` in the namespace of -n, or `namespace/iris`."""
        namespace, _, own = name.rpartition("/")
        if not own or "/" in namespace:
            raise UsageError(f"{name} is no name of a service: write NAME or NAMESPACE/NAME")
        return namespace or self.namespace, own


def connect(name: str, *, start: bool = True) -> "Target":
    if name == "local":
        return local(start=start)
    found = _plugin(name)
    if found is None:
        raise _unknown(name)
    made: Target = found(os.environ)
    return made


def local(*, start: bool, flags: Sequence[str] = ()) -> "LocalTarget":
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.local.home import home
    from pilotlight.targets.local.launching import ensure, living

    folder = home()
    if start and living(folder) is None:
        output.note(f"starting the platform; its state is in {folder.root}")
    return LocalTarget(ensure(folder, start=start, flags=flags))


def _deployed_before() -> bool:
    from pilotlight.targets.local.home import home

    return home().database.exists()


def _plugin(name: str) -> Callable[[Mapping[str, str]], Any] | None:
    from importlib.metadata import entry_points

    return next((entry.load() for entry in entry_points(group=ENTRY_POINTS, name=name)), None)


def _unknown(name: str) -> Exception:
    if name in PLANNED:
        return UsageError(f"--target {name} is not built yet", PLANNED[name])
    from importlib.metadata import entry_points

    known = ["local", *sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))]
    return NotFound(f"no target is called {name}; there are {', '.join(known)}")


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--target", default="local", show_default=True, envvar="PILOTLIGHT_TARGET", metavar="NAME",
        help="Where services run. [env: PILOTLIGHT_TARGET]",
    )(command)  # fmt: skip


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--target and -n on a verb, handed over as one `at`."""

    @wraps(command)
    def called(target: str, namespace: str, **typed: Any) -> Any:
        return command(at=At(target, namespace), **typed)

    called = click.option(
        "-n", "--namespace", default="default", show_default=True, envvar="PILOTLIGHT_NAMESPACE",
        help="Of services named without one. [env: PILOTLIGHT_NAMESPACE]",
    )(called)  # fmt: skip
    return target_option(called)
