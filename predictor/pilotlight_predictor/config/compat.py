"""Flags of Triton and TensorRT Inference Server that translate to several settings, have no effect, or are refused.

Those with the same meaning as a setting are its aliases in setting_definitions.py.
"""

from collections.abc import Mapping
from typing import Any

from pilotlight import contract
from pilotlight_predictor.config.settings_table import ParsedSource
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
REFUSED = {
    "--grpc-use-ssl": "terminate TLS in a proxy in front of this server",
    "--grpc-use-ssl-mutual": "terminate TLS in a proxy in front of this server",
}
IGNORED = frozenset({
    "--allow-cpu-metrics", "--allow-model-load-unload", "--allow-profiling", "--allow-sagemaker",
    "--allow-vertex-ai", "--backend-config", "--backend-directory", "--buffer-manager-thread-count",
    "--cache-directory", "--cuda-memory-pool-byte-size", "--cuda-virtual-address-size",
    "--disable-auto-complete-config", "--enable-peer-access",
    "--grpc-http2-max-ping-strikes", "--grpc-http2-max-pings-without-data",
    "--grpc-http2-min-recv-ping-interval-without-data", "--grpc-infer-allocation-pool-size",
    "--grpc-infer-response-compression-level", "--grpc-infer-thread-count", "--grpc-keepalive-permit-without-calls",
    "--grpc-keepalive-time", "--grpc-keepalive-timeout", "--grpc-max-connection-age",
    "--grpc-max-connection-age-grace", "--grpc-max-response-pool-size", "--grpc-root-cert", "--grpc-server-cert",
    "--grpc-server-key", "--grpc-stream-infer-thread-count", "--host-policy",
    "--http-health-port", "--http-thread-count", "--log-file", "--metrics-config",
    "--min-supported-compute-capability", "--model-config-name", "--model-load-gpu-limit", "--model-load-retry-count",
    "--model-load-thread-count", "--model-namespacing", "--pinned-memory-pool-byte-size", "--platform-config-file",
    "--rate-limit", "--rate-limit-resource", "--repoagent-directory", "--reuse-grpc-port", "--reuse-http-port",
    "--sagemaker-port", "--sagemaker-safe-port-range", "--sagemaker-thread-count", "--strict-model-config",
    "--tf-add-vgpu", "--tf-allow-soft-placement", "--tf-gpu-memory-fraction", "--trace-config", "--trace-count",
    "--trace-file", "--trace-level", "--trace-log-frequency", "--trace-rate", "--vertex-ai-default-model",
    "--vertex-ai-port", "--vertex-ai-thread-count",
})  # fmt: skip


def implied_by(compat: str, strict: bool) -> dict[str, Any]:
    """Return the values that `--compat` sets in place of the defaults; `strict`: readiness is not switched lenient."""
    if not compat:
        return {}
    return {
        "server.http_port": contract.COMPAT_HTTP_PORT,
        "server.grpc_port": contract.COMPAT_GRPC_PORT,
        "server.metrics_port": contract.COMPAT_METRICS_PORT,
        "server.strict_readiness": True,
        "server.exit_on_error": strict or compat == "triton",  # lenient TRTIS serves without its failed models
    }


def implied_by_protocol(protocol: str) -> dict[str, Any]:
    """Return the values that `--dialect` sets in place of the defaults."""
    return {"server.grpc_port": contract.SERVING_GRPC_PORT} if protocol == "serving" else {}


def ignore(flag: str, text: str, source: ParsedSource) -> None:
    """Warn about a flag without effect; reject one that protects the server, unless it is off."""
    reason = REFUSED.get(flag)
    if reason and text.lower() not in ("false", "0"):
        source.problems.append(f"{flag}: is not supported; {reason}")
    else:
        source.warnings.append(f"{flag} has no effect and is ignored")


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
    for text in arguments.get("--cache-config", []):
        _cache(text, source)


def _switch(flag: str, text: str, source: ParsedSource) -> bool:
    try:
        return boolean(text)
    except ValueError:
        source.problems.append(f"{flag}: {flag[2:]} = {text}, must be true or false")
        return True


def _log_level(switches: Mapping[str, bool], verbose: str | None, source: ParsedSource) -> None:
    if verbose is not None and not verbose.isdigit():
        source.reject("--log-verbose", "log-verbose", verbose, "a whole number, 0 or greater")
    elif verbose and int(verbose) > 0:
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
    name, _, option = text.partition(",")
    key, _, value = option.partition("=")
    if name != "local" or key != "size":
        source.warnings.append(f"--cache-config {text} has no effect and is ignored; use local,size=BYTES")
        return
    try:
        source.values["performance.response_cache_bytes"] = size(value)
    except ValueError:
        source.reject("--cache-config", "performance.response_cache_bytes", value, "a number of bytes")
