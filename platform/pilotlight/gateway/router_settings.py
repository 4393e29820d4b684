"""Settings of a router component, from environment variables that the plan sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pilotlight.contract import ENV_ENDPOINTS_DIR, ENV_SETTINGS_PREFIX, HTTP_PORT
from pilotlight.errors import UsageError

ENV_PREFIX: Final = "PILOTLIGHT_ROUTER_"
PORT: Final = f"{ENV_SETTINGS_PREFIX}HTTP_PORT"
HOST: Final = f"{ENV_SETTINGS_PREFIX}HOST"
ALL_INTERFACES: Final = "0.0.0.0"  # noqa: S104 - other pods connect to it
STRATEGIES: Final = ("round_robin", "least_loaded", "cache_aware", "prefill_decode")


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """`engine` and `decoder` are workloads; with `prefill_decode`, requests go to the decoder."""

    engine: str
    namespace: str = "default"
    decoder: str = ""
    strategy: str = "least_loaded"
    health_check_s: float = 10.0
    endpoints: Path | None = None
    host: str = ALL_INTERFACES
    port: int = HTTP_PORT

    @property
    def disaggregated(self) -> bool:
        return self.strategy == "prefill_decode"


def read(environ: Mapping[str, str]) -> RouterSettings:
    """Return the settings. Raises UsageError, which names the variable."""
    engine = environ.get(f"{ENV_PREFIX}ENGINE", "")
    strategy = environ.get(f"{ENV_PREFIX}STRATEGY") or "least_loaded"
    decoder = environ.get(f"{ENV_PREFIX}DECODER", "")
    if not engine:
        raise UsageError(f"{ENV_PREFIX}ENGINE is not set, must name the workload that the router asks")
    if strategy not in STRATEGIES:
        raise UsageError(f"{ENV_PREFIX}STRATEGY = {strategy}, must be one of {', '.join(STRATEGIES)}")
    if strategy == "prefill_decode" and not decoder:
        raise UsageError(
            f"{ENV_PREFIX}DECODER is not set, must name the decoders that prefill_decode sends requests to"
        )
    folder = environ.get(ENV_ENDPOINTS_DIR)
    return RouterSettings(
        engine, environ.get(f"{ENV_PREFIX}NAMESPACE") or "default", decoder, strategy,
        _number(environ, f"{ENV_PREFIX}HEALTH_CHECK_INTERVAL_S", 10.0, 0.1, 3600),
        Path(folder) if folder else None, environ.get(HOST) or ALL_INTERFACES,
        int(_number(environ, PORT, HTTP_PORT, 0, 65535)),
    )  # fmt: skip


def _number(environ: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    written = environ.get(name) or str(default)
    try:
        value = float(written)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UsageError(f"{name} = {written}, must be a number from {least:g} to {most:g}")
    return value
