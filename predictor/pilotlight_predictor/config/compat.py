"""Flags of Triton and TensorRT Inference Server that translate to several settings.

Those with the same meaning as a setting are its aliases in setting_definitions.py; triton_flags.py has those without
an effect.
"""

import re
from collections.abc import Mapping
from typing import Any

from pilotlight import contract
from pilotlight_predictor.config.settings_table import ROWS, ParsedSource
from pilotlight_predictor.config.triton_flags import NO_EFFECT, REFUSED, SILENT
from pilotlight_predictor.config.value_types import boolean, size

TRANSLATED = {
    "--allow-http": "Serve HTTP; false is rejected, since HTTP cannot be turned off.",
    "--allow-grpc": "Serve gRPC; false sets server.grpc_port to -1.",
    "--allow-metrics": "Serve metrics on their own port; false sets server.metrics_port to -1.",
    "--log-verbose": "Above 0 sets observability.log_level to debug.",
    "--log-info": "With the next two: the lowest enabled level becomes observability.log_level.",
    "--log-warning": "See --log-info.",
    "--log-error": "See --log-info.",
    "--cache-config": "local,size=BYTES sets performance.response_cache_bytes.",
    "--model-store": "Same as --model-repository; the control mode defaults to versions.",
    "--allow-poll-model-repository": "Control mode poll, or none when false.",
    "--allow-model-control": "Control mode explicit.",
}
BOOLEANS = frozenset(flag for flag in TRANSLATED if flag.startswith("--allow-")) | {
    "--log-info",
    "--log-warning",
    "--log-error",
}
TRACE_FLAGS = {
    "--trace-file": "triton,file", "--trace-rate": "rate", "--trace-count": "count", "--trace-level": "level",
    "--trace-log-frequency": "triton,log-frequency",
}  # fmt: skip
TRANSLATED |= {flag: f"Same as --trace-config {setting}=VALUE." for flag, setting in TRACE_FLAGS.items()}


def implied_by(compat: str, strict: bool, replica: bool = False) -> dict[str, Any]:
    """Return the values that `--compat` sets in place of the defaults; `strict`: readiness is not switched lenient.

    `replica`: of a service, whose probes and routes name the default ports.
    """
    if not compat:
        return {}
    ports = {
        "server.http_port": contract.COMPAT_HTTP_PORT,
        "server.grpc_port": contract.COMPAT_GRPC_PORT,
        "server.metrics_port": contract.COMPAT_METRICS_PORT,
    }
    return {
        **({} if replica else ports),
        "server.strict_readiness": True,
        "server.grpc.max_ping_strikes": 2 if compat == "triton" else 0,
        "server.exit_on_error": strict or compat == "triton",  # lenient TRTIS serves without its failed models
    }


def implied_by_protocol(protocol: str) -> dict[str, Any]:
    """Return the values that `--dialect` sets in place of the defaults."""
    return {"server.grpc_port": contract.SERVING_GRPC_PORT} if protocol == "serving" else {}


def ignore(flag: str, text: str, source: ParsedSource) -> None:
    """Warn about a flag without effect; reject an invalid value, and one that protects the server unless it is off."""
    if flag in REFUSED and text.lower() not in ("false", "0"):
        source.problems.append(f"{flag}: is not supported; {REFUSED[flag]}")
    elif flag in NO_EFFECT and not re.fullmatch(NO_EFFECT[flag][0], text):
        source.problems.append(f"{flag}: {flag[2:]} = {text[:60]}, is not of the form that Triton reads")
    elif flag in NO_EFFECT and (flag, text) not in SILENT:
        source.warnings.append(f"{flag} has no effect: {NO_EFFECT[flag][1]}")


def translate(arguments: Mapping[str, list[str]], source: ParsedSource) -> None:
    """Turn the flags of `TRANSLATED` into values; `arguments` has all values per flag, in order."""
    last = {flag: texts[-1] for flag, texts in arguments.items()}
    switches = {flag: _switch(flag, text, source) for flag, text in last.items() if flag in BOOLEANS}
    if not switches.get("--allow-http", True):
        source.reject("--allow-http", "allow-http", "false", "true: HTTP cannot be turned off")
    for name in ("grpc", "metrics"):
        if not switches.get(f"--allow-{name}", True):
            source.values[f"server.{name}_port"] = -1
            source.origins[f"server.{name}_port"] = f"--allow-{name}"
    _log_level(switches, last.get("--log-verbose"), source)
    _control_mode(switches, arguments.get("--model-store", []), source)
    trace_config = next(row for row in ROWS if row.key == "observability.trace_config")
    for flag, setting in TRACE_FLAGS.items():
        for text in arguments.get(flag, []):
            source.add(trace_config, f"{setting}={text}", flag)
    for text in arguments.get("--cache-config", []):
        _cache(text, source)


def _switch(flag: str, text: str, source: ParsedSource) -> bool:
    try:
        return boolean(text)
    except ValueError:
        source.problems.append(f"{flag}: {flag[2:]} = {text}, must be true or false")
        return True


def _log_level(switches: Mapping[str, bool], verbose: str | None, source: ParsedSource) -> None:
    if verbose is not None and not verbose.isdigit() and verbose not in ("true", "false"):
        source.reject("--log-verbose", "log-verbose", verbose, "a whole number, 0 or greater")
    elif verbose and verbose.lstrip("0") not in ("", "false"):
        source.values.setdefault("observability.log_level", "debug")
    elif switches.keys() & {"--log-info", "--log-warning", "--log-error"}:
        levels = [level for level in ("info", "warning") if switches.get(f"--log-{level}", True)]
        source.values.setdefault("observability.log_level", levels[0] if levels else "error")


def _control_mode(switches: Mapping[str, bool], stores: list[str], source: ParsedSource) -> None:
    if stores:
        source.values["model.repositories"] = (*source.values.get("model.repositories", ()), *stores)
        source.origins["model.repositories"] = "--model-store"
        source.implied["model.control_mode"] = "versions"
    if "--allow-poll-model-repository" in switches:
        source.implied["model.control_mode"] = "poll" if switches["--allow-poll-model-repository"] else "none"
    if switches.get("--allow-model-control"):
        source.implied["model.control_mode"] = "explicit"


def _cache(text: str, source: ParsedSource) -> None:
    name, comma, option = text.partition(",")
    key, equals, value = option.partition("=")
    if not comma or not equals:
        source.reject("--cache-config", "cache-config", text, "NAME,SETTING=VALUE")
        return
    if name != "local" or key != "size":
        source.warnings.append(f"--cache-config {text} has no effect and is ignored; use local,size=BYTES")
        return
    try:
        source.values["performance.response_cache_bytes"] = size(value)
    except ValueError:
        source.reject("--cache-config", "performance.response_cache_bytes", value, "a number of bytes")
