"""Targets by name: how to connect to each, its options and its checks. The API and the command line use it.

A target beside `local` and `kubernetes` is a module and a line in MODULES. The module has

    OPTIONS: tuple[Option, ...]                              values of --target-option NAME=VALUE, or of variables
    def findings(environ, options) -> Iterator[Finding]      checks of `platformctl doctor --target NAME`
    def gpus(image, environ, options) -> int | None          check before a microservice starts, and the GPUs for it

The control process of the embedded platform runs those in EMBEDDED, each by its launcher. Modules of those in
REMOTE, which are clouds, also have `endpoints(environ, home)`. Other packages add targets by the entry point group
`pilotlight.targets`: a function of the environment that returns a `targets.target.Target`.
Heavy modules are imported on use: every command imports this one.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pilotlight.errors import UsageError
from pilotlight.wire.messages import suggestion

if TYPE_CHECKING:
    from pilotlight.targets.local.home_directory import Home
    from pilotlight.targets.options import Option
    from pilotlight.targets.remote.endpoint import Endpoints
    from pilotlight.targets.target import Finding, Target

ENTRY_POINTS: Final = "pilotlight.targets"
EMBEDDED: Final = ("local", "docker", "slurm")
REMOTE: Final = ("lepton", "brev")
SYNONYMS: Final = dict.fromkeys(("k8s", "kube", "cluster"), "kubernetes")  # suggested, not accepted
MODULES = {
    "docker": "pilotlight.targets.docker.options_and_checks",
    "slurm": "pilotlight.targets.slurm.options_and_checks",
    "lepton": "pilotlight.targets.lepton.endpoints",
    "brev": "pilotlight.targets.brev.endpoints",
}


class TargetModule(Protocol):
    """What a module of MODULES has."""

    OPTIONS: "tuple[Option, ...]"

    def findings(self, environ: Mapping[str, str], options: Mapping[str, str]) -> "Iterator[Finding]": ...
    def gpus(self, image: str, environ: Mapping[str, str], options: Mapping[str, str]) -> int | None:
        """Return the GPUs of the machine that the image would run on; None: enough, or the target checks it itself.

        Raise for an image or options with which nothing can be started.
        """


class RemoteModule(TargetModule, Protocol):
    def endpoints(self, environ: Mapping[str, str], home: "Home") -> "Endpoints": ...


def connect(
    name: str, environ: Mapping[str, str], *, start: bool = True, flags: Sequence[str] = (),
    options: Mapping[str, str] | None = None, context: str = "", force: bool = False, prometheus: str = "",
) -> "Target":  # fmt: skip
    """Connect to a target; raises UsageError for an unknown name. `options` are resolved ones.

    `start` starts the embedded platform with `flags` if it is down; `context`, `force`, `prometheus` are for clusters.
    """
    check_name(name)
    if name in EMBEDDED:
        from pilotlight.targets.local.client import LocalTarget
        from pilotlight.targets.local.control_process_launcher import ensure
        from pilotlight.targets.local.home_directory import home

        return LocalTarget(ensure(home(environ), start=start, flags=flags), name, options)
    if name == "kubernetes":
        from pilotlight.targets.kubernetes.target import KubernetesTarget

        prometheus = prometheus or environ.get("PILOTLIGHT_PROMETHEUS", "")
        return KubernetesTarget.connect(context, force=force, prometheus=prometheus)
    if name in REMOTE:
        from pilotlight.targets.local.home_directory import home
        from pilotlight.targets.remote.endpoint_target import EndpointTarget

        remote, folder = cast(RemoteModule, module(name)), home(environ)
        return EndpointTarget(remote.endpoints(environ, folder), folder, options)
    (plugin,) = _plugins(name)
    target: Target = plugin.load()(environ)
    return target


def check_name(name: str) -> None:
    """Raise UsageError for an unknown target."""
    if name in ("local", "kubernetes", *MODULES) or _plugins(name):
        return
    known = ("local", "kubernetes", *MODULES, *sorted(plugin.name for plugin in _plugins()))
    hint = suggestion(SYNONYMS.get(name, name), known)
    raise UsageError(f"unknown target {name}; known: {', '.join(known)}{hint}")


def _plugins(name: str = "") -> list[Any]:
    """Return the entry points of other packages, at most one of a name."""
    from importlib.metadata import entry_points

    plugins = entry_points(group=ENTRY_POINTS)
    return list(plugins.select(name=name))[:1] if name else list(plugins)


def module(name: str) -> TargetModule | None:
    """Return the module of a target; None: it has no options and no checks of its own."""
    check_name(name)
    return cast(TargetModule, import_module(MODULES[name])) if name in MODULES else None


def options_of(
    name: str, arguments: Mapping[str, str], environ: Mapping[str, str], *, complete: bool = False
) -> dict[str, str]:
    """Return the options of a target, from arguments, variables or defaults; `complete`: raise for missing ones."""
    from pilotlight.targets.options import check_missing, resolve_options

    target, flag = module(name), "--target-option"
    values, missing = resolve_options(target.OPTIONS if target else (), arguments, environ, "", name, flag)
    check_missing(missing if complete else [], name, flag)
    return values
