"""Merging of all sources into Settings: flag > environment > file > implied > default. All problems at once."""

import sys
from collections.abc import Iterator, Mapping, Sequence

from pilotlight import contract
from pilotlight_predictor.config.compat import implied_by, implied_by_protocol
from pilotlight_predictor.config.read_sources import INFO_FLAGS, read_document, read_environment, read_flags
from pilotlight_predictor.config.setting_definitions import Settings
from pilotlight_predictor.config.settings_table import CONFIG, ParsedSource, build, limits
from pilotlight_predictor.config.value_types import check_weights

EXIT_USAGE = 2
RPC_FLAG = "--grpc-restricted-protocol"
PROGRAM = "python -m pilotlight_predictor"


class SettingsError(ValueError):
    """Invalid settings; `problems` has one sentence each, with its origin."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Parse all sources; `argv` without the program's name. Raises SettingsError with all problems."""
    flags, variables = read_flags(argv), read_environment(environ)
    named = next((source for source in (flags, variables) if CONFIG.key in source.values), None)
    document = read_document(named.values[CONFIG.key], named.origins[CONFIG.key]) if named else ParsedSource()
    sources = (document, variables, flags)
    merged = _merge(sources)
    settings = build(merged.values, ())
    problems = [problem for source in reversed(sources) for problem in source.problems]
    problems += _conflicts(settings, merged)
    if problems:
        raise SettingsError(problems)
    return build(merged.values, (*merged.warnings, *_warnings(settings)))


def command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Parse for a program: print --help and --version, exit with 2 after printing all problems."""
    flag = next((word for word in argv if word in INFO_FLAGS), None)
    if flag:
        from pilotlight_predictor.config.help import info_text

        sys.stdout.write(info_text(flag, environ.get(contract.ENV_PROGRAM, PROGRAM)))
        raise SystemExit(0)
    try:
        return parse(argv, environ)
    except SettingsError as error:
        sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
        raise SystemExit(EXIT_USAGE) from None


def _merge(sources: Sequence[ParsedSource]) -> ParsedSource:
    """Merge sources, in order of rising precedence."""
    merged = ParsedSource()
    for source in sources:
        merged.values |= source.values
        merged.implied |= source.implied
        merged.origins |= source.origins
        merged.warnings += source.warnings
        merged.incomplete |= source.incomplete
    strict, replica = merged.values.get("server.strict_readiness", True), "server.behind_proxy" in merged.implied
    ports = implied_by(merged.values.get("server.compat", ""), strict, replica)
    ports |= implied_by_protocol(merged.values.get("server.dialect", ""))
    merged.implied = ports | merged.implied
    urls = [value for key, value in merged.values.get("observability.trace_config", ()) if key == "opentelemetry,url"]
    if urls:
        merged.implied["observability.otel_endpoint"] = urls[-1]
    for group, limit in (("rate_limit", "requests_per_minute"), ("input_validation", "max_sequence_length")):
        if f"safeguards.{group}.{limit}" in merged.values:  # a limit that is set is enabled, also without `enabled`
            merged.implied[f"safeguards.{group}.enabled"] = True
    merged.values = merged.implied | merged.values
    if ":" in (path := merged.values.get("model.path", "")):
        from pilotlight.wire.model_formats import split_object  # no part of most starts

        merged.values["model.path"], served = split_object(path)
        parameters = merged.values.get("model.parameters", {})
        merged.values["model.parameters"] = {"class": served, **parameters} if served else parameters
    return merged


def _conflicts(settings: Settings, merged: ParsedSource) -> Iterator[str]:
    """Yield problems of values that are valid alone and not together."""
    model, origins = settings.model, merged.origins
    if not merged.incomplete and not model.path and not model.repositories:
        yield "model.path and model.repositories are empty: set --model-path or --model-repository"
    if model.example and not model.path:
        yield (
            f"{origins['model.example']}: model.example = {model.example[:60]} needs --model-path; for the models of a "
            "repository, put an example.json into the folder of each"
        )
    if settings.server.as_triton and "*" in model.load_models and len(model.load_models) > 1:
        yield f"{origins['model.load_models']}: model.load_models has * and others, must be * alone"
    if model.load_models and model.control_mode != "explicit":
        yield (
            f"{origins['model.load_models']}: model.load_models = {', '.join(model.load_models)}, must be empty while "
            f"model.control_mode is {model.control_mode}; add --model-control-mode=explicit"
        )
    for name, flag in (("http_restricted_apis", "--http-restricted-api"), ("grpc_restricted_apis", RPC_FLAG)):
        listed = [group for groups in getattr(settings.server, name) for group in groups.groups]
        if twice := sorted({group for group in listed if listed.count(group) > 1}):
            yield f"{origins[f'server.{name}']}: {flag} restricts {', '.join(twice)} twice; name each group once"
    for problem in check_weights(model.version_weights, model.version_labels):
        yield f"{origins['model.version_weights']}: {problem}"
    if model.park_after_s and not model.parks:
        yield (
            f"{origins['model.park_after_s']}: model.park_after_s = {model.park_after_s:g}, must be 0 while "
            f"model.park_memory is 0; add --park-memory=25%"
        )
    yield from _ports(settings, origins)
    yield from _fronts(settings, origins)


def _fronts(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Yield what does not go with --fronts."""
    server = settings.server
    if not server.fronts:
        return
    here = f"{origins['server.fronts']}: server.fronts = {server.fronts}"
    if server.workers > 1:
        yield f"{here}, must be 0 with server.workers = {server.workers}; set one of --fronts and --workers"
    if server.allow_shared_memory:
        yield f"{here}, must be 0 with server.allow_shared_memory: a region belongs to one process; remove one of them"
    if any(key == "file" for key, _ in settings.observability.trace_config):
        yield f"{here}, must be 0 with a trace file: request traces need a single process; remove one of them"
    share = server.max_bytes_in_flight // (server.fronts + 1)
    if share < server.http_max_input_size:
        yield (
            f"{here} leaves each process {share} of server.max_bytes_in_flight, less than one request may have"
            f" ({server.http_max_input_size}); raise --max-bytes-in-flight or lower --http-max-input-size"
        )


def _ports(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Yield ports that are used twice. 0 (any) and -1 (off) may be repeated."""
    taken: dict[int, str] = {}
    for name in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(settings.server, name)
        if port > 0 and port in taken:
            origin = origins.get(f"server.{name}") or origins.get(f"server.{taken[port]}", "defaults")
            yield f"{origin}: server.{name} = {port}, must be another port than server.{taken[port]}"
        taken.setdefault(port, name)


def _warnings(settings: Settings) -> Iterator[str]:
    server = settings.server
    if any(key == "opentelemetry,resource" for key, _ in settings.observability.trace_config):
        yield "--trace-config opentelemetry,resource has no effect: spans have the attributes of this server"
    if limits(settings).requests_per_minute and server.behind_proxy and not server.trusted_proxies:
        yield (
            "safeguards.rate_limit does not apply to clients without a token: behind a proxy all clients have its"
            " address; set its networks with --trusted-proxies"
        )
