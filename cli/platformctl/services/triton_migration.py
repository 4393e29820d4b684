"""What a Triton server's command line and model repository become on the platform, and what will differ. Pure.

The predictor's own parser and readers decide, so that a migration promises nothing that a start refuses.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.errors import UsageError
from pilotlight_predictor.config import SettingsError, parse
from pilotlight_predictor.core.backend_table import find_backend
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.layout import check_source, scan, with_named_config
from pilotlight_predictor.repository.model_config import ModelConfig
from pilotlight_predictor.repository.unsupported_fields import ignored_fields

REPOSITORY: Final = ("--model-repository", "--model-store")
_PORTS: Final = "clients use the address of the service, which has one port for HTTP and one for gRPC"
_SCALING: Final = "replicas are the unit of scaling: minReplicas, maxReplicas"
# Flags that the platform decides in place of the command line.
PLATFORM: Final = {
    "--http-port": _PORTS, "--grpc-port": _PORTS, "--metrics-port": _PORTS, "--http-address": _PORTS,
    "--grpc-address": _PORTS, "--metrics-address": _PORTS, "--allow-http": _PORTS, "--allow-grpc": _PORTS,
    "--allow-metrics": _PORTS, "--reuse-http-port": _SCALING, "--reuse-grpc-port": _SCALING,
}  # fmt: skip
BEHAVIOUR: Final = {
    "--allow-client-shm": "shared memory reaches a replica only from its own machine, and needs one replica",
    "--load-model": "calls that load or unload a model reach one replica, and a replica that starts forgets them",
    "--trace-config": "files are written in the replica; a path must lie on a volume to outlive it",
    "--log-file": "platformctl logs and the log of a pod then show nothing: the lines are in that file of the replica",
}


class Migration(NamedTuple):
    """Arguments of the predictor, whether models want a GPU, and one sentence for each thing that differs."""

    arguments: tuple[str, ...]
    gpu: bool
    differences: tuple[str, ...]


def migrate(repository: str, flags: Sequence[str]) -> Migration:
    """Return the migration of a repository, a folder or URI, and the server's flags. Raise UsageError."""
    words = list(_words(flags))
    if other := [value for flag, value in words if flag in REPOSITORY and value != repository]:
        raise UsageError(f"{other[0]} is a second repository; a service has one", "migrate each into its own service")
    passed = [(flag, value) for flag, value in words if flag not in {*REPOSITORY, *PLATFORM}]
    argv = [flag if value is None else f"{flag}={value}" for flag, value in passed]
    try:
        settings = parse(["--compat=triton", f"--model-repository={repository}", *argv], {})
    except SettingsError as error:
        raise UsageError(str(error), "correct or leave out these flags of tritonserver") from None
    dropped = {warning.partition(" ")[0] for warning in settings.warnings}
    notes = [f"{flag}: {PLATFORM[flag]}" for flag in dict.fromkeys(flag for flag, _ in words) if flag in PLATFORM]
    notes += [f"{flag}: {text}" for flag, text in BEHAVIOUR.items() if any(each == flag for each, _ in passed)]
    kept = tuple(text for (flag, _), text in zip(passed, argv, strict=True) if flag not in dropped)
    configs = dict(_configs(repository, settings.model.config_name)) if "://" not in repository else {}
    notes += [*settings.warnings, *(note for name, found in configs.items() for note in _model_notes(name, found))]
    gpu = any(
        group.kind == "GPU"
        for found in configs.values() if isinstance(found, ModelConfig)
        for group in found.instance_groups
    )  # fmt: skip
    return Migration(("--compat=triton", *kept), gpu, tuple(notes))


def _words(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield flags with their values: `--flag=value`, `--flag value` or `--flag`."""
    rest = list(flags)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise UsageError(f"{flag} is no flag of tritonserver", "write its flags after REPOSITORY: --flag=value")
        flag = flag.replace("_", "-")
        if not equals and rest and not rest[0].startswith("--"):
            equals, value = "=", rest.pop(0)
        yield flag, value if equals else None


def _configs(repository: str, config_name: str) -> Iterator[tuple[str, ModelConfig | str | None]]:
    """Yield each model with its configuration, or why it cannot be loaded, or None if that is derived."""
    try:
        sources = scan(Path(repository))
    except LoadFailed as error:
        raise UsageError(str(error), "name the folder or URI of the model repository") from None
    for source in sources:
        try:
            yield source.name, check_source(with_named_config(source, config_name))
        except LoadFailed as error:
            yield source.name, str(error)


def _model_notes(name: str, config: ModelConfig | str | None) -> Iterator[str]:
    if isinstance(config, str):
        yield f"model '{name}' will not load: {config}"
    elif config is not None:
        backend = config.backend or config.platform
        if backend and backend != "ensemble" and find_backend(backend) is None:
            yield f"model '{name}' will not load: there is no backend '{backend}' (docs/reference/backends.md)"
        if fields := ignored_fields(config):
            yield f"model '{name}': {', '.join(fields)} have no effect"
