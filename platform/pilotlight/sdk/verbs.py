"""Verbs of `platformctl` as functions: the same commands, called in this process, with their results as values.

Options that are not given have the command's defaults and variables, such as PILOTLIGHT_TARGET. Errors are those of
`pilotlight.errors`. A verb blocks; call it in a thread beside an event loop.
"""

import inspect
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

import msgspec

from pilotlight.contract import MODEL_PACKAGE
from pilotlight.errors import PlatformError, UsageError
from pilotlight.sdk.model import options_of
from pilotlight.sdk.model_folder import served_model, with_hint
from pilotlight.targets.local.home_directory import home
from pilotlight.targets.target import ServiceStatus

if TYPE_CHECKING:
    from typing import Unpack

    from pilotlight.client import AsyncClient, Client

Deployable: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Callable[..., Any] | object"
NEGATED: Final = {"wait": "--no-wait", "auto_promote": "--manual"}
ARGUMENTS: Final = {"--set": "sets", **{flag: f"{name}=False" for name, flag in NEGATED.items()}}
SETS: Final = 'such as {"spec.predictor.maxReplicas": 5}'
_PLACE: Final = re.compile(r"^(?:manifest of (.+?)|<stdin>):\d+:\d+: error PL\d+: ", re.MULTILINE)
_FLAG: Final = re.compile(r"(?<![\w/-])--([a-z][a-z-]*)(?!\w)")
SERVING: Final = ("Ready", "Standby", "Parked", "Degraded")  # at zero too: the next request starts a replica


class Service(ServiceStatus, frozen=True):
    """A service as `platformctl status -o json` shows it."""

    @property
    def ready(self) -> bool:
        """Whether requests are answered, by an earlier revision too; a service at zero starts with the next one."""
        return self.phase in SERVING

    @property
    def traffic(self) -> dict[str, int]:
        """Percent of the requests by revision."""
        return {each.name: each.percent for each in self.revisions if each.percent}

    def client(self, **options: Any) -> "Client":
        """Return a client of this service."""
        from pilotlight.client import Client

        return Client(self.url, **options)

    def async_client(self, **options: Any) -> "AsyncClient":
        from pilotlight.client import AsyncClient

        return AsyncClient(self.url, **options)

    def __repr__(self) -> str:
        shares = ", ".join(f"{percent} % {name}" for name, percent in self.traffic.items())
        return f"<Service {self.namespace}/{self.name}: {self.phase}; {shares or 'no traffic'}; {self.url}>"


class CommonOptions(TypedDict, total=False):
    """Options of every verb. `progress` gets each line that the command would print on stderr."""

    target: str
    namespace: str
    progress: Callable[[str], None]


class WaitOptions(CommonOptions, total=False):
    """Options of verbs that wait until it is done; `timeout` in seconds."""

    wait: bool
    timeout: float


class DeployOptions(WaitOptions, total=False):
    """Options of `deploy` and `canary`; `sets` are values by path: {"spec.predictor.maxReplicas": 5}."""

    min_replicas: int
    trust_pickle: bool
    format: str
    sets: Mapping[str, Any]
    target_option: Sequence[str]


class CanaryOptions(DeployOptions, total=False):
    """Options of `canary`: those of `platformctl canary start`, docs/how-to/canary.md. `steps` may be a list."""

    percent: int
    steps: str | Sequence[int]
    bake: str
    interval: str
    check: str | Sequence[str]
    compare: str
    ratio: float
    min_requests: int
    failure_limit: int
    inconclusive_limit: int
    on_no_data: str
    on_inconclusive: str
    example: str
    deadline: str
    keep_stable: str
    auto_promote: bool


def deploy(what: Deployable, *, name: str | None = None, **options: "Unpack[DeployOptions]") -> Service:
    """Deploy a model or documents and return the service; of several documents the first, or that called `name`.

    `what` is a path or URI of a model, a file of documents, an InferenceService as a dict, the name of a deployed
    service, or a class, function or instance (see `model`). `trust_pickle` allows a model that is a pickle, which may
    run code of its author. Starts the local platform if none runs.
    """
    words, stdin, own = _argument(what, name)
    return _service(_call("deploy", words, {**own, **options}, stdin))


def canary(name: str, what: Deployable, **options: "Unpack[CanaryOptions]") -> Service:
    """Start a canary of the service with another model or document; wait until it is promoted.

    With `percent` nothing judges it: it keeps that share until `promote` or `abort`. Raise RolledBack if it fails.
    """
    steps = options.get("steps")
    if steps is not None and not isinstance(steps, str):
        options["steps"] = ",".join(map(str, steps))
    words, stdin, own = _argument(what, name)
    if own.pop("name", None):
        words = [name, *words]
    return _service(_call("canary start", words, {**own, **options}, stdin))


def promote(name: str, *, full: bool = False, **options: "Unpack[WaitOptions]") -> Service:
    """Give a canary the requests of its next step; all of them with `full`, or where nothing judges it."""
    return _service(_call("canary promote", [name], {"full": full or None, **options}))


def abort(name: str, **options: "Unpack[WaitOptions]") -> Service:
    """Give all requests back to the revision before the canary."""
    return _service(_call("canary abort", [name], {**options}))


def rollback(name: str, *, to: str = "", **options: "Unpack[WaitOptions]") -> Service:
    """Deploy an earlier release again: the one before, or a revision or generation."""
    return _service(_call("rollback", [name], {"to": to or None, **options}))


def status(name: str, **options: "Unpack[CommonOptions]") -> Service:
    """Return the state of a service. Raise NotFound if there is none of that name."""
    return _service(_call("status", [name], {**options}))


def services(**options: "Unpack[CommonOptions]") -> list[Service]:
    """Return all services, or those of `namespace`; none if the local platform is down."""
    return _services(_call("list", [], {**options}) or {"services": []})


def scale(
    name: str, *, min: int | None = None, max: int | None = None, to: int | None = None,  # noqa: A002 - as the command
    reset: bool = False, **options: "Unpack[WaitOptions]",
) -> Service:  # fmt: skip
    """Set how many replicas may run, over what the document says; `reset` removes that."""
    return _service(_call("scale", [name], {"min": min, "max": max, "to": to, "reset": reset or None, **options}))


def traffic(name: str, shares: Mapping[str, int] | None = None, **options: "Unpack[WaitOptions]") -> Service:
    """Set percent of the requests by revision ("latest" is the newest); None: as the document says again."""
    words = [name, ",".join(f"{revision}={percent}" for revision, percent in (shares or {}).items())]
    return _service(_call("traffic", words if shares else [name], {"reset": shares is None or None, **options}))


def delete(name: str, *, missing_ok: bool = False, **options: "Unpack[WaitOptions]") -> None:
    """Delete a service with its revisions and history."""
    _call("delete", [name], {"ignore_not_found": missing_ok or None, **options})


def _check_caller() -> None:
    """Raise UsageError where a predictor imports the code that deploys: each replica would deploy again."""
    caller = sys._getframe(3).f_globals  # of the verb
    if caller["__name__"].startswith(f"{MODEL_PACKAGE}.") and caller["__spec__"]._initializing:
        file = os.path.basename(caller["__file__"])
        raise UsageError(f'{file} deploys when it is imported: put these lines under `if __name__ == "__main__":`')


def _argument(what: Any, name: str | None) -> tuple[list[str], str, dict[str, Any]]:
    """Return the words of a command that name a model or documents, its standard input, and options of its own."""
    from pilotlight.wire.model_formats import name_for
    from platformctl.services import model_argument

    _check_caller()
    named = [name] if name else []
    if isinstance(what, Mapping):
        return named, json.dumps(what), {"file": "-"}
    if isinstance(what, str | os.PathLike):
        word = os.path.join(".", what) if not isinstance(what, str) else what
        kind = model_argument.kind_of(word)
        if kind == "documents":
            return named, "", {"file": word}
        return [word], "", {"name": name} if name and kind == "model" else {}
    options = options_of(what)
    try:
        model = served_model(what, home().sources)
    except UsageError as error:
        raise with_hint(error) from None
    own = {"name": name or options.name or name_for(model.name), "min_replicas": options.min_replicas}
    sets: dict[str, Any] = {}
    if options.resources:
        sets["spec.predictor.model.resources"] = {"limits": options.resources, "requests": options.resources}
    word = f"{model.path}:{model.name}"
    source = word if home().sources in model.path.parents else ""
    return [word], "", {**own, "own_sets": sets, "own_source": source}


def _call(command: str, words: Sequence[str], options: Mapping[str, Any], stdin: str = "") -> Any:
    """Run a command of platformctl and return the last value it would print; its errors have their hint as a note."""
    import click

    from platformctl import output
    from platformctl.main import platformctl

    given = {name: value for name, value in options.items() if value is not None}
    if not all(isinstance(word, str) and word for word in words):
        raise UsageError(f"{command}: name = {words[0]!r}, must be the name of a service")
    if not isinstance(given.get("sets", {}), Mapping):
        raise UsageError(f"{command}: sets = {given['sets']!r}, must be a dict {SETS}")
    values: list[Any] = []
    source, progress = given.pop("own_source", ""), given.pop("progress", None) or _print
    flags = {*_options_of(command), *(f"--{name.replace('_', '-')}" for name in given)}  # also those it lacks
    sink = output.Sink(
        values.append, lambda line: progress(_in_python(line, source, flags)), io.StringIO(stdin), time.monotonic()
    )
    token = output.SINK.set(sink)
    try:
        line = [*command.split(), "-o", "json", *_flags(given), "--", *words]
        platformctl.main(line, "platformctl", standalone_mode=False)
    except PlatformError as error:
        error.args, error.hint = (_in_python(str(error), source, flags),), _in_python(error.hint, source, flags)
        raise with_hint(error).with_traceback(None) from error.__cause__  # without the frames of the command line
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        raise UsageError(f"{command}: {_in_python(error.format_message(), '', flags)}") from None
    finally:
        output.SINK.reset(token)
    return values[-1] if values else None


def _options_of(command: str) -> Iterator[str]:
    """Yield the options that a command of platformctl has, as a command line has them."""
    import click

    from platformctl.main import platformctl

    found: Any = platformctl
    for word in command.split():
        found = found.get_command(click.Context(found), word)
    for parameter in found.params:
        yield from (*parameter.opts, *parameter.secondary_opts)


def _in_python(text: str, source: str, flags: Collection[str]) -> str:
    """Return a message of the command for a caller in Python, with the name of a model instead of its written source.

    The command's own `flags` have the names of arguments, except in a command for a terminal; other text that looks
    like options, such as an engine's error, stays.
    """
    folder, _, name = source.rpartition(":")
    if source and "local path" not in text:  # which is to be uploaded
        text = text.replace(source, name).replace(f"{folder}/", "").replace(folder, name)
    text = _PLACE.sub(lambda place: f"{place[1] or 'the dict'}: ", text)
    if "platformctl" in text:
        return text

    def argument(flag: re.Match[str]) -> str:
        return ARGUMENTS.get(flag[0], flag[1].replace("-", "_")) if flag[0] in flags else flag[0]

    return _FLAG.sub(argument, text)


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield options as a command line has them."""
    sets = {**options.get("own_sets", {}), **options.get("sets", {})}
    yield from (f"--set={path}={json.dumps(value)}" for path, value in sets.items())
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield from [flag] if value else [NEGATED[name]] if name in NEGATED else []
        elif name not in ("sets", "own_sets"):
            values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
            yield from (f"{flag}={each}" for each in values)


def _services(document: Any) -> list[Service]:
    return msgspec.convert(document.get("services", [document]), list[Service])


def _service(document: Any) -> Service:
    return _services(document)[0]


def _print(line: str) -> None:
    """Print a line: on stderr as the command does; in a notebook, which shows that in red, on stdout."""
    stream = sys.stdout if "ipykernel" in sys.modules else sys.stderr
    stream.write(f"{line}\n")


def _show_options(verb: Callable[..., Any], options: Any) -> None:
    """Name the options in the signature, for help() and completion; None is as if it were not given."""
    signature = inspect.signature(verb)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options.__annotations__.items()
    ]
    verb.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]


_OPTIONS: Final[dict[Any, tuple[Callable[..., Any], ...]]] = {
    DeployOptions: (deploy,), CanaryOptions: (canary,), CommonOptions: (status, services),
    WaitOptions: (promote, abort, rollback, scale, traffic, delete),
}  # fmt: skip
for _options, _verbs in _OPTIONS.items():
    for _verb in _verbs:
        _show_options(_verb, _options)
