"""All sources together: flag > environment > file > implied > default, every mistake reported at once."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pilotlight import contract
from pilotlight_predictor.settings.compat import implied_by, implied_by_dialect
from pilotlight_predictor.settings.document import read_document
from pilotlight_predictor.settings.environment import read_environment
from pilotlight_predictor.settings.flags import ANSWERED, read_flags
from pilotlight_predictor.settings.limits import limits
from pilotlight_predictor.settings.model import Settings
from pilotlight_predictor.settings.reading import Reading
from pilotlight_predictor.settings.shares import wrong_shares
from pilotlight_predictor.settings.table import CONFIG, ROWS, build

EXIT_USAGE = 2
PROGRAM = "python -m pilotlight_predictor"


class SettingsError(ValueError):
    """Settings that cannot hold; `problems` has one sentence each, with where it was found."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """`argv` without the program's name. Raises SettingsError with all that is wrong."""
    flags, variables = read_flags(argv), read_environment(environ)
    document = _document(flags, variables)
    readings = (document, variables, flags)
    merged = _merge(readings)
    problems = [problem for reading in reversed(readings) for problem in reading.problems]
    problems += _contradictions(merged)
    if problems:
        raise SettingsError(problems)
    settings = build(merged.values, ())
    return build(merged.values, (*merged.warnings, *_idle(merged), *_cautions(settings)))


def command_line(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """What a program's start calls: answers --help and --version, and ends with 2 after naming every mistake."""
    asked = next((word for word in argv if word in ANSWERED), None)
    if asked:
        from pilotlight_predictor.settings.text import answer

        sys.stdout.write(answer(asked, environ.get(contract.ENV_PROGRAM, PROGRAM)))
        raise SystemExit(0)
    try:
        return parse(argv, environ)
    except SettingsError as error:
        sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
        raise SystemExit(EXIT_USAGE) from None


def _document(flags: Reading, variables: Reading) -> Reading:
    for source in (flags, variables):
        if CONFIG.key in source.values:
            return read_document(source.values[CONFIG.key], source.origins[CONFIG.key])
    return Reading()


def _merge(readings: Sequence[Reading]) -> Reading:
    """`readings` from the weakest to the strongest."""
    given = Reading()
    for reading in readings:
        given.values |= reading.values
        given.implied |= reading.implied
        given.origins |= reading.origins
        given.warnings += reading.warnings
        given.incomplete |= reading.incomplete
    ports = implied_by(given.values.get("server.compat", "")) | implied_by_dialect(
        given.values.get("server.dialect", "")
    )
    given.implied = ports | given.implied | _enabled(given.values)
    given.values = given.implied | given.values
    return given


def _enabled(values: Mapping[str, Any]) -> dict[str, bool]:
    """Who writes down a limit wants it, also without `enabled: true`."""
    limits = {"rate_limit": "requests_per_minute", "input_validation": "max_sequence_length"}
    return {
        f"safeguards.{name}.enabled": True for name, limit in limits.items() if f"safeguards.{name}.{limit}" in values
    }


def _contradictions(given: Reading) -> list[str]:
    """Values that are right alone and wrong together."""
    settings = build(given.values, ())
    missing = [] if given.incomplete else _missing(settings)
    together = (*_load_models(settings, given.origins), *_weights(given), *_parking(settings, given.origins))
    return [*missing, *together, *_ports(settings, given.origins)]


def _weights(given: Reading) -> Iterator[str]:
    weights, labels = (given.values.get(f"model.version_{name}", {}) for name in ("weights", "labels"))
    for problem in wrong_shares(weights, labels):
        yield f"{given.origins['model.version_weights']}: {problem}"


def _missing(settings: Settings) -> list[str]:
    if settings.model.path or settings.model.repositories:
        return []
    return ["model.path and model.repositories are empty, one must be given: --model-path or --model-repository"]


def _load_models(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    model = settings.model
    if model.load_models and model.control_mode != "explicit":
        yield (
            f"{origins['model.load_models']}: model.load_models = {', '.join(model.load_models)}, must be empty while "
            f"model.control_mode is {model.control_mode}; add --model-control-mode=explicit"
        )


def _parking(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    model = settings.model
    if model.park_after_s and not model.parks:
        yield (
            f"{origins['model.park_after_s']}: model.park_after_s = {model.park_after_s:g}, must be 0 while "
            f"model.park_memory is 0; add --park-memory=25%"
        )


def _ports(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """0 and -1 are no port yet, so they may stand more than once."""
    taken: dict[int, str] = {}
    for name in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(settings.server, name)
        if port > 0 and port in taken:
            origin = origins.get(f"server.{name}") or origins.get(f"server.{taken[port]}", "defaults")
            yield f"{origin}: server.{name} = {port}, must be another port than server.{taken[port]}"
        taken.setdefault(port, name)


def _idle(given: Reading) -> Iterator[str]:
    """Who sets what has no effect is told; who switches it off has what he wants."""
    for row in ROWS:
        if row.idle and row.key in given.origins and given.values[row.key] != -1:
            yield f"{given.origins[row.key]}: {row.key} = {given.values[row.key]} has no effect: {row.idle}"


def _cautions(settings: Settings) -> Iterator[str]:
    """What is valid and yet not what its author may think."""
    server = settings.server
    if limits(settings).requests_per_minute and server.behind_proxy and not server.trusted_proxies:
        yield (
            "safeguards.rate_limit binds nobody without a token: behind a proxy all clients have its address;"
            " name its networks with --trusted-proxies"
        )
