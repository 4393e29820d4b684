"""What commands connect to: a target by name, the gateway of a service, the predictor's program."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import click

from pilotlight import contract
from pilotlight.errors import NotFound, OnOtherTarget, PlatformError, UsageError
from pilotlight.targets import table
from pilotlight.wire.http_client import FAILURES, HttpClient, HttpReply
from platformctl import completion, output

if TYPE_CHECKING:
    from pilotlight.targets.local.client import LocalTarget
    from pilotlight.targets.local.home_directory import Home
    from pilotlight.targets.target import Key, Target

LOCAL: Final = "local"
CLUSTER: Final = "cluster"  # of verbs that only plan: any cluster, which is not asked
EMBEDDED: Final = table.EMBEDDED
CONTEXT: Final = "platformctl.context"  # key of --context in click's meta
FORCE: Final = "platformctl.force"
PROMETHEUS: Final = "platformctl.prometheus"
OPTIONS: Final = "platformctl.target-options"
CONNECTED: Final = "platformctl.target"  # what the command has connected to, and the services that it named
SERVICES: Final = "platformctl.services"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class NotRunning(NotFound):
    """The embedded platform is down, and the verb does not start it."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Values of --target and --namespace."""

    target: str
    namespace: str

    def connect(self, *, start: bool = True) -> "Target":
        """Connect to the target; `start` starts the embedded platform if it is down."""
        return connect(self.target, start=start)

    def connect_running(self) -> "Target":
        """Connect for a verb about an existing service: starts the platform only if anything was ever deployed."""
        return connect(self.target, start=_has_state())

    def connect_read_only(self) -> "Target":
        """Connect without starting anything; raises NotRunning if the platform is down."""
        return connect(self.target, start=False)

    def connect_if_running(self) -> "Target | None":
        """Connect without starting anything; prints a note and returns None if the platform is down."""
        try:
            return self.connect_read_only()
        except NotRunning as error:
            output.note(f"{error}; {error.hint}")
            return None

    def key(self, name: str) -> "Key":
        return service_key(name, self.namespace)


def service_key(name: str, default_namespace: str) -> "Key":
    """Return the key of `iris` or `namespace/iris`."""
    namespace, _, own = name.rpartition("/")
    if not own or "/" in namespace:
        raise UsageError(f"{name} is not the name of a service: write NAME or NAMESPACE/NAME")
    key = namespace or default_namespace, own
    _command_meta().setdefault(SERVICES, []).append(key)
    return key


def suggest_service(error: Exception, meta: Mapping[str, Any]) -> None:
    """Add the nearest service to the hint of a NotFound, if the command named one that does not exist."""
    target = meta.get(CONNECTED)
    if target is None or not isinstance(error, NotFound) or isinstance(error, OnOtherTarget):
        return
    with suppress(Exception):  # whatever the list raises, the error itself must be shown
        there = [(each.namespace, each.name) for each in target.list(None)]
        if near := next(filter(None, (near_service(key, there) for key in meta.get(SERVICES, ()))), ""):
            error.hint = f"did you mean {near}? {error.hint}".rstrip()


def near_service(key: "Key", there: "Sequence[Key]") -> str:
    """Return the service of this name in another namespace, else that of the most similar name; empty: none."""
    from pilotlight.targets.target import service_argument
    from pilotlight.wire.messages import nearest

    if key in there:
        return ""
    names = {name: (namespace, name) for namespace, name in sorted(there, key=lambda each: each[0] == key[0])}
    return next((service_argument(names[name]) for name in nearest(key[1], names, 1)), "")


def connect(name: str, *, start: bool = True) -> "Target":
    """Connect to a target; raises UsageError for an unknown name."""
    if context() and name != "kubernetes":
        raise UsageError(f"--context names a cluster, and the target is {name}", "add --target kubernetes")
    meta = _command_meta()
    if name in EMBEDDED:
        target: Target = local(start=start, name=name)
    else:
        prometheus = str(meta.get(PROMETHEUS) or "")
        force, options = bool(meta.get(FORCE)), options_of(name)
        target = table.connect(name, os.environ, options=options, context=context(), force=force, prometheus=prometheus)
    meta[CONNECTED] = target
    return target


def options_of(name: str, *, complete: bool = False, released: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the target's options, of --target-option and variables; `complete`: raise UsageError for missing ones.

    `released` are those of a service as it runs, used instead of variables and defaults.
    """
    from pilotlight.targets.options import parse_options

    typed = parse_options(_command_meta().get(OPTIONS) or ())
    environ = os.environ if released is None else {}
    return table.options_of(name, {**(released or {}), **typed}, environ, complete=complete)


def local(*, start: bool, flags: Sequence[str] = (), name: str = LOCAL) -> "LocalTarget":
    """Connect to a target of the embedded platform; a start and its reasons are printed."""
    from pilotlight.targets.local.control_process_launcher import living, restart_flags, should_run
    from pilotlight.targets.local.home_directory import home

    values, folder = options_of(name), home()
    if living(folder) is None:
        _refuse_removed_home(folder)
        if not start and should_run(folder):
            _wait_restarted(folder)
        elif not start:
            back = " and brings back what was deployed" if _has_state() else ""
            raise NotRunning("the platform is not running", f"platformctl up starts it{back}")
        else:
            options = shlex.join(restart_flags(folder, flags))
            keeps = f"; as platformctl down did not end it, it keeps its options: {options}" if options else ""
            output.note(f"starting the platform; its state is in {folder.root}{keeps}")
    try:
        return cast("LocalTarget", table.connect(name, os.environ, start=start, flags=flags, options=values))
    except OSError as error:
        if not _is_of_home(folder, error):
            raise PlatformError(f"the platform cannot be started: {error}", "see platformctl doctor") from None
        message = f"the platform cannot keep its state in {folder.root}: {error.strerror}"
        raise PlatformError(message, "set PILOTLIGHT_HOME to a folder that you may write to") from None


def _is_of_home(folder: "Home", error: OSError) -> bool:
    """Whether the error is about a file of the state folder, or a folder above it."""
    path = str(error.filename or "")
    return bool(path) and (Path(path).is_relative_to(folder.root) or folder.root.is_relative_to(path))


def _wait_restarted(folder: "Home") -> None:
    """Wait for a control process that is being restarted. Raise PlatformError if it does not come back."""
    from pilotlight.targets.local.control_process_launcher import failure, wait_restarted

    if wait_restarted(folder) is not None:
        return
    reason, hint = failure(folder)
    error = PlatformError(f"the platform should run and does not: {reason}", hint)
    output.error_data(str(error), error.hint, error.exit_code)
    raise error


def _refuse_removed_home(folder: "Home") -> None:
    """Raise PlatformError if the state folder was removed while its platform, which has the ports, still runs."""
    from pilotlight.targets.local.home_shutdown import processes_of_removed_home

    if processes := processes_of_removed_home(folder):
        running = ", ".join(f"{role} (pid {pid})" for pid, role in processes.items())
        message = f"{folder.root} was removed or replaced while the platform runs; still there: {running}"
        hint = "platformctl down ends them; then platformctl up"
        output.error_data(message, hint, PlatformError.exit_code)
        raise PlatformError(message, hint)


def context() -> str:
    """Return the value of --context; empty: the kubeconfig's current context."""
    return str(_command_meta().get(CONTEXT) or "")


def _command_meta() -> dict[str, Any]:
    """Return the options that callbacks stored on the click context; empty outside of a command."""
    running = click.get_current_context(silent=True)
    return running.meta if running else {}


def _has_state() -> bool:
    from pilotlight.targets.local.home_directory import home

    return home().database.exists()


def _store_in_meta(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a click callback that stores a value for `connect` instead of passing it to the command."""

    def store(command_context: click.Context, _: click.Parameter, value: Any) -> Any:
        command_context.meta[name] = value
        return value

    return store


def option_group(argument: str, kind: type, options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command and passes their values as one argument of class `kind`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def called(**values: Any) -> Any:
            own = {field.name: values.pop(field.name, None) for field in fields(kind)}
            return command(**{argument: kind(**own)}, **values)

        return add_options(called, options)

    return decorate


def add_options(command: Callable[..., Any], options: Sequence[Decorator]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


context_option: Final = click.option(
    "--context", envvar="PILOTLIGHT_CONTEXT", metavar="NAME", expose_value=False, callback=_store_in_meta(CONTEXT),
    help="Context of the kubeconfig, for --target kubernetes. [env: PILOTLIGHT_CONTEXT]",
)  # fmt: skip


def target_flag(default: str, meaning: str, *plans_for: str) -> Decorator:
    return click.option(
        "--target", default=default, show_default=True, envvar="PILOTLIGHT_TARGET", metavar="NAME",
        shell_complete=completion.targets(*plans_for), help=f"{meaning} [env: PILOTLIGHT_TARGET]",
    )  # fmt: skip


TARGET: Final = (
    target_flag(LOCAL, "Where services run: local, kubernetes, docker, slurm, lepton, brev."),
    context_option,
)
TARGET_OPTION: Final = click.option(
    "--target-option", multiple=True, metavar="NAME=VALUE", expose_value=False, callback=_store_in_meta(OPTIONS),
    help="Option of the target, such as partition=gpu (docs/how-to/targets.md); repeatable.",
)  # fmt: skip
NAMESPACE: Final = click.option(
    "-n", "--namespace", default="default", show_default=True, envvar="PILOTLIGHT_NAMESPACE",
    shell_complete=completion.namespaces,
    help="Namespace of services named without one. [env: PILOTLIGHT_NAMESPACE]",
)  # fmt: skip
options: Final = option_group("service_options", ServiceOptions, (*TARGET, NAMESPACE))
force_option: Final = click.option(
    "--force-conflicts", is_flag=True, expose_value=False, callback=_store_in_meta(FORCE),
    help="On a cluster: take over fields that other managers own.",
)  # fmt: skip
prometheus_option: Final = click.option(
    "--prometheus", metavar="URL", expose_value=False, callback=_store_in_meta(PROMETHEUS),
    help="URL of Prometheus, for a cluster (default: that of namespace monitoring). [env: PILOTLIGHT_PROMETHEUS]",
)  # fmt: skip


def name_argument(**settings: Any) -> Decorator:
    """Return the argument NAME of a service, which a shell completes."""
    return click.argument("name", shell_complete=completion.services, **settings)


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return add_options(command, TARGET)


class Gateway:
    """HTTP client of one service. `url` is what `status` shows; `headers` are sent with every request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url, self._headers = url, headers

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
        timeout: float = 300.0,
    ) -> HttpReply:  # fmt: skip
        client = HttpClient(self._url, timeout, self._headers)
        try:
            with client:
                return client.request(method, path, body, headers)
        except TimeoutError:
            raise PlatformError(f"no response within {timeout:g} s", "wait longer: --timeout") from None
        except FAILURES as error:
            message = f"the gateway at {client.address} does not respond: {error!r}"
            raise PlatformError(message, "see platformctl doctor") from error


def command(*words: str) -> list[str]:
    """Return the command line of the predictor, run by the same Python interpreter."""
    return [sys.executable, "-m", "pilotlight_predictor", *words]


def become(verb: str, *words: str) -> NoReturn:
    """Replace this process with the predictor, so that signals and the exit code are its own; its help names `verb`."""
    environ = {**os.environ, contract.ENV_PROGRAM: f"platformctl {verb}"}
    os.execve(sys.executable, command(*words), environ)  # noqa: S606 - itself, no shell
