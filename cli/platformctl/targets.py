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

from pilotlight.errors import NotFound, PlatformError, UsageError
from platformctl import output

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.target import Key, Target

ENTRY_POINTS: Final = "pilotlight.targets"
LOCAL: Final = "local"
CONTEXT: Final = "platformctl.context"  # where click keeps what --context says
FORCE: Final = "platformctl.force"
PROMETHEUS: Final = "platformctl.prometheus"
# Known by name, so that whoever asks for one learns what to do instead.
PLANNED: Final[Mapping[str, str]] = {
    "docker": "run it here with --target local",
    "slurm": "run it here with --target local",
    "lepton": "run it here with --target local",
    "brev": "run it here with --target local",
}


class NotRunning(NotFound):
    """The embedded platform is down, and the verb is none that starts it."""


@dataclass(frozen=True, slots=True)
class At:
    """The target and the namespace as they were typed."""

    target: str
    namespace: str

    def connect(self, *, start: bool = True) -> "Target":
        """`start`: whether a platform that does not run is started for this."""
        return connect(self.target, start=start)

    def reach(self) -> "Target":
        """For verbs about a service that must be there: where nothing was ever deployed, nothing is started."""
        return connect(self.target, start=_deployed_before())

    def look(self) -> "Target":
        """For verbs that only look: nothing is started, and one that does not run is NotRunning."""
        return connect(self.target, start=False)

    def glance(self) -> "Target | None":
        """The same for verbs that have an answer also where nothing runs; that it does not is said."""
        try:
            return self.look()
        except NotRunning as error:
            output.note(f"{error}; {error.hint}")
            return None

    def key(self, name: str) -> "Key":
        """`iris` in the namespace of -n, or `namespace/iris`."""
        namespace, _, own = name.rpartition("/")
        if not own or "/" in namespace:
            raise UsageError(f"{name} is no name of a service: write NAME or NAMESPACE/NAME")
        return namespace or self.namespace, own


def connect(name: str, *, start: bool = True) -> "Target":
    given = _given()
    if name == "kubernetes":
        from pilotlight.targets.kubernetes.target import KubernetesTarget

        asked = str(given.get(PROMETHEUS) or os.environ.get("PILOTLIGHT_PROMETHEUS", ""))
        return KubernetesTarget.connect(context(), force=bool(given.get(FORCE)), prometheus=asked)
    if context():
        raise UsageError(f"--context names a cluster, and the target is {name}", "add --target kubernetes")
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
    if living(folder) is None:
        if not start:
            back = " and brings back what was deployed" if _deployed_before() else ""
            raise NotRunning("the platform is not running", f"platformctl up starts it{back}")
        output.note(f"starting the platform; its state is in {folder.root}")
    try:
        return LocalTarget(ensure(folder, start=start, flags=flags))
    except OSError as error:
        message = f"the platform cannot keep its state in {folder.root}: {error.strerror}"
        raise PlatformError(message, "set PILOTLIGHT_HOME to a folder that you may write to") from None


def context() -> str:
    """What --context says; empty: the kubeconfig's own."""
    return str(_given().get(CONTEXT) or "")


def _given() -> Mapping[str, Any]:
    """What --context and --force-conflicts say; nothing where no command is being run."""
    running = click.get_current_context(silent=True)
    return running.meta if running else {}


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

    known = ["local", "kubernetes", *sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))]
    return NotFound(f"no target is called {name}; there are {', '.join(known)}")


def _kept(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option that only `connect` asks for: kept beside the command and not handed to it."""

    def keep(running: click.Context, _: click.Parameter, value: Any) -> Any:
        running.meta[name] = value
        return value

    return keep


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--context", envvar="PILOTLIGHT_CONTEXT", metavar="NAME", expose_value=False, callback=_kept(CONTEXT),
        help="Of the kubeconfig, for --target kubernetes. [env: PILOTLIGHT_CONTEXT]",
    )(command)  # fmt: skip
    return click.option(
        "--target", default="local", show_default=True, envvar="PILOTLIGHT_TARGET", metavar="NAME",
        help="Where services run: local, kubernetes. [env: PILOTLIGHT_TARGET]",
    )(command)  # fmt: skip


def force_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--force-conflicts", is_flag=True, expose_value=False, callback=_kept(FORCE),
        help="On a cluster: take over fields that others have set.",
    )(command)  # fmt: skip


def prometheus_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--prometheus", metavar="URL", expose_value=False, callback=_kept(PROMETHEUS),
        help="On a cluster: who is asked; the one in monitoring unless told. [env: PILOTLIGHT_PROMETHEUS]",
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
