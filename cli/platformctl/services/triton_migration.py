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
_PORTS: Final = "clients use the addresses of the service; platformctl status has its own ports for HTTP and gRPC"
_GRPC: Final = (
    "protocolVersion: grpc-v2: here the service has HTTP and gRPC, on a cluster gRPC alone; v2 is HTTP alone, on both"
)
_SCALING: Final = "replicas are the unit of scaling: minReplicas, maxReplicas"
# Flags that the platform decides in place of the command line.
PLATFORM: Final = {
    "--http-port": _PORTS, "--grpc-port": _PORTS, "--metrics-port": _PORTS, "--http-address": _PORTS,
    "--grpc-address": _PORTS, "--metrics-address": _PORTS, "--allow-http": _PORTS, "--allow-grpc": _PORTS,
    "--allow-metrics": _PORTS, "--reuse-http-port": _SCALING, "--reuse-grpc-port": _SCALING,
}  # fmt: skip
CONNECTION: Final = (
    "--grpc-keepalive-time", "--grpc-keepalive-timeout", "--grpc-http2-max-ping-strikes", "--grpc-max-connection-age",
    "--grpc-infer-response-compression-level",
)  # fmt: skip
BEHAVIOUR: Final = {
    "--allow-client-shm": "shared memory reaches a replica only from its own machine, and needs one replica",
    "--load-model": "calls to the model repository need the token of --admin-token-file and reach one replica, and a"
    " replica that starts forgets them",
    "--trace-config": "files are written in the replica; a path must lie on a volume to outlive it",
    "--log-file": "platformctl logs and the log of a pod then show nothing: the lines are in that file of the replica",
    **dict.fromkeys(
        CONNECTION, "it holds between the gateway or ingress and a replica; clients' connections end there"
    ),
}


class Migration(NamedTuple):
    """Arguments of the predictor, whether models want a GPU, and one sentence for each thing that differs.

    `protocol`: protocolVersion; empty is the default, HTTP alone.
    """

    repository: str
    arguments: tuple[str, ...]
    protocol: str
    gpu: bool
    differences: tuple[str, ...]


def migrate(command: Sequence[str]) -> Migration:
    """Return the migration of a command line: the repository, a folder or URI, and flags. Raise UsageError."""
    words = list(_words(command))
    repositories = {path.rstrip("/").removeprefix("./"): path for flag, path in words if flag in REPOSITORY and path}
    if len(repositories) != 1:
        problem = f"{' and '.join(repositories.values())} are {len(repositories)} repositories; a service has one"
        hint = "migrate each into its own service" if repositories else "add --model-repository=FOLDER"
        raise UsageError(problem if repositories else "the model repository is missing", hint)
    (repository,) = repositories.values()
    passed = [(flag, value) for flag, value in words if flag not in {*REPOSITORY, *PLATFORM}]
    argv = [flag if value is None else f"{flag}={value}" for flag, value in passed]
    grpc = [f"{flag}={value}" for flag, value in words if flag in ("--allow-grpc", "--grpc-port") and value]
    try:
        settings = parse(["--compat=triton", f"--model-repository={repository}", *argv, *grpc], {})
    except SettingsError as error:
        raise UsageError(str(error), "correct or leave out these flags of tritonserver") from None
    if any("health" in each.groups for each in settings.server.http_restricted_apis):
        problem = "--http-restricted-api: group health would refuse the probes of the platform, so that nothing starts"
        raise UsageError(problem, "leave health out of the groups; the service's own tokens protect it from clients")
    dropped = {warning.partition(" ")[0] for warning in settings.warnings}
    flags = dict.fromkeys(flag for flag, _ in words)
    decided = {text: ", ".join(flag for flag in flags if PLATFORM.get(flag) == text) for text in (_PORTS, _SCALING)}
    notes = [f"{named}: {text}" for text, named in decided.items() if named]
    serves_grpc = settings.server.grpc_port >= 0
    notes += [_GRPC] if serves_grpc else []
    notes += [f"{flag}: {text}" for flag, text in BEHAVIOUR.items() if any(each == flag for each, _ in passed)]
    kept = tuple(text for (flag, _), text in zip(passed, argv, strict=True) if flag not in dropped)
    configs = dict(_configs(repository, settings.model.config_name)) if "://" not in repository else {}
    absent = [name for name in settings.model.load_models if configs and name not in (*configs, "*")]
    notes += [f"--load-model={name} ends the start: the repository has no model '{name}'" for name in absent]
    notes += [*settings.warnings, *(note for name, found in configs.items() for note in _model_notes(name, found))]
    gpu = any(
        group.kind == "GPU"
        for found in configs.values() if isinstance(found, ModelConfig)
        for group in found.instance_groups
    )  # fmt: skip
    protocol = "grpc-v2" if serves_grpc else ""
    return Migration(repository, ("--compat=triton", *kept), protocol, gpu, tuple(notes))


def _words(command: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield flags with their values: `--flag=value`, `--flag value` or `--flag`; a leading path is the repository."""
    rest = list(command)
    if rest and Path(rest[0]).name == "tritonserver" and not Path(rest[0]).is_dir():
        rest.pop(0)
    if rest and not rest[0].startswith("--"):
        yield REPOSITORY[0], rest.pop(0)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise UsageError(f"{flag} is no flag of tritonserver", "write its flags as --flag=value")
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
