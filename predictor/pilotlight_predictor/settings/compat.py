"""Command lines written for Triton or TensorRT Inference Server: what their flags mean here.

A flag with the same meaning is an alias in `model.py`. Those below say something that several settings express, say
nothing here, or would be unsafe to ignore.
"""

from collections.abc import Mapping
from typing import Any

from pilotlight import contract
from pilotlight_predictor.settings.kinds import boolean, size
from pilotlight_predictor.settings.reading import Reading

TRANSLATED = {
    "--allow-http": "HTTP is served; false is refused while it is the only protocol.",
    "--allow-grpc": "gRPC has a port; false sets server.grpc_port to -1.",
    "--allow-metrics": "Metrics have a port; false sets server.metrics_port to -1.",
    "--log-verbose": "Above 0 sets observability.log_level to debug.",
    "--log-info": "With the next two: the least level that is on becomes observability.log_level.",
    "--log-warning": "See --log-info.",
    "--log-error": "See --log-info.",
    "--cache-config": "local,size=BYTES sets performance.response_cache_bytes.",
    "--model-store": "As --model-repository, and control mode versions unless one is given.",
    "--allow-poll-model-repository": "Control mode poll, or none when false.",
    "--allow-model-control": "Control mode explicit.",
}
BOOLEANS = frozenset(flag for flag in TRANSLATED if flag.startswith("--allow-")) | {
    "--log-info",
    "--log-warning",
    "--log-error",
}
REFUSED = {
    "--grpc-use-ssl": "TLS ends in a proxy in front of this server",
    "--grpc-use-ssl-mutual": "TLS ends in a proxy in front of this server",
    "--http-restricted-api": "use --admin-token-file and --api-token-file to restrict access",
    "--grpc-restricted-protocol": "use --admin-token-file and --api-token-file to restrict access",
}
IGNORED = frozenset({
    "--allow-cpu-metrics", "--allow-model-load-unload", "--allow-profiling", "--allow-sagemaker",
    "--allow-vertex-ai", "--backend-config", "--backend-directory", "--buffer-manager-thread-count",
    "--cache-directory", "--cuda-memory-pool-byte-size", "--cuda-virtual-address-size",
    "--disable-auto-complete-config", "--enable-peer-access", "--grpc-header-forward-pattern",
    "--grpc-http2-max-ping-strikes", "--grpc-http2-max-pings-without-data",
    "--grpc-http2-min-recv-ping-interval-without-data", "--grpc-infer-allocation-pool-size",
    "--grpc-infer-response-compression-level", "--grpc-infer-thread-count", "--grpc-keepalive-permit-without-calls",
    "--grpc-keepalive-time", "--grpc-keepalive-timeout", "--grpc-max-connection-age",
    "--grpc-max-connection-age-grace", "--grpc-max-response-pool-size", "--grpc-root-cert", "--grpc-server-cert",
    "--grpc-server-key", "--grpc-stream-infer-thread-count", "--host-policy", "--http-header-forward-pattern",
    "--http-health-port", "--http-thread-count", "--log-file", "--metrics-config",
    "--min-supported-compute-capability", "--model-config-name", "--model-load-gpu-limit", "--model-load-retry-count",
    "--model-load-thread-count", "--model-namespacing", "--pinned-memory-pool-byte-size", "--platform-config-file",
    "--rate-limit", "--rate-limit-resource", "--repoagent-directory", "--reuse-grpc-port", "--reuse-http-port",
    "--sagemaker-port", "--sagemaker-safe-port-range", "--sagemaker-thread-count", "--strict-model-config",
    "--tf-add-vgpu", "--tf-allow-soft-placement", "--tf-gpu-memory-fraction", "--trace-config", "--trace-count",
    "--trace-file", "--trace-level", "--trace-log-frequency", "--trace-rate", "--vertex-ai-default-model",
    "--vertex-ai-port", "--vertex-ai-thread-count",
})  # fmt: skip


def implied_by(compat: str) -> dict[str, Any]:
    """What `--compat` puts in place of the defaults."""
    if not compat:
        return {}
    return {
        "server.http_port": contract.COMPAT_HTTP_PORT,
        "server.grpc_port": contract.COMPAT_GRPC_PORT,
        "server.metrics_port": contract.COMPAT_METRICS_PORT,
        "server.strict_readiness": True,
        "server.exit_on_error": True,
    }


def implied_by_dialect(dialect: str) -> dict[str, Any]:
    """What `--dialect` puts in place of the defaults."""
    return {"server.grpc_port": contract.SERVING_GRPC_PORT} if dialect == "serving" else {}


def ignore(flag: str, text: str, reading: Reading) -> None:
    """Accepts a flag without effect; one that protects the server is refused unless it is off."""
    reason = REFUSED.get(flag)
    if reason and text.lower() not in ("false", "0"):
        reading.problems.append(f"{flag}: is not offered here; {reason}")
    else:
        reading.warnings.append(f"{flag} has no effect here and is ignored")


def translate(given: Mapping[str, list[str]], reading: Reading) -> None:
    """Turns the flags of `TRANSLATED` into values; `given` has every text per flag, in order."""
    last = {flag: texts[-1] for flag, texts in given.items()}
    switches = {flag: _switch(flag, text, reading) for flag, text in last.items() if flag in BOOLEANS}
    _ports(switches, reading)
    _log_level(switches, last.get("--log-verbose"), reading)
    _control_mode(switches, given.get("--model-store", []), reading)
    for text in given.get("--cache-config", []):
        _cache(text, reading)


def _switch(flag: str, text: str, reading: Reading) -> bool:
    try:
        return boolean(text)
    except ValueError:
        reading.problems.append(f"{flag}: {flag[2:]} = {text}, must be true or false")
        return True


def _ports(switches: Mapping[str, bool], reading: Reading) -> None:
    if not switches.get("--allow-http", True):
        reading.refuse("--allow-http", "allow-http", "false", "true: HTTP is the only protocol that is served")
    for name in ("grpc", "metrics"):
        if not switches.get(f"--allow-{name}", True):
            reading.values[f"server.{name}_port"] = -1
            reading.origins[f"server.{name}_port"] = f"--allow-{name}"


def _log_level(switches: Mapping[str, bool], verbose: str | None, reading: Reading) -> None:
    if verbose is not None and not verbose.isdigit():
        reading.refuse("--log-verbose", "log-verbose", verbose, "a whole number, 0 or greater")
    elif verbose and int(verbose) > 0:
        reading.values.setdefault("observability.log_level", "debug")
    elif switches.keys() & {"--log-info", "--log-warning", "--log-error"}:
        levels = [level for level in ("info", "warning") if switches.get(f"--log-{level}", True)]
        reading.values.setdefault("observability.log_level", levels[0] if levels else "error")


def _control_mode(switches: Mapping[str, bool], stores: list[str], reading: Reading) -> None:
    if stores:
        reading.values["model.repositories"] = (*reading.values.get("model.repositories", ()), *stores)
        reading.origins["model.repositories"] = "--model-store"
        reading.implied["model.control_mode"] = "versions"
    if "--allow-poll-model-repository" in switches:
        reading.implied["model.control_mode"] = "poll" if switches["--allow-poll-model-repository"] else "none"
    if switches.get("--allow-model-control"):
        reading.implied["model.control_mode"] = "explicit"


def _cache(text: str, reading: Reading) -> None:
    name, _, option = text.partition(",")
    key, _, value = option.partition("=")
    if name != "local" or key != "size":
        reading.warnings.append(f"--cache-config {text} has no effect here and is ignored; local,size=BYTES has one")
        return
    try:
        reading.values["performance.response_cache_bytes"] = size(value)
    except ValueError:
        reading.refuse("--cache-config", "performance.response_cache_bytes", value, "a number of bytes")
