"""Settings of a router component, and its strategies: loads and the beginning of a body in, an endpoint out. Pure."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pilotlight.contract import ENV_ACCESS_FILE, ENV_ENDPOINTS_DIR, ENV_SETTINGS_PREFIX, ENV_TRUSTED_PROXIES, HTTP_PORT
from pilotlight.errors import UsageError
from pilotlight.gateway.cluster.settings import number, parse_proxies
from pilotlight.gateway.engine_router.disaggregation import PROTOCOLS
from pilotlight.wire.client_address import Networks

ENV_PREFIX: Final = "PILOTLIGHT_ROUTER_"
PORT: Final = f"{ENV_SETTINGS_PREFIX}HTTP_PORT"
HOST: Final = f"{ENV_SETTINGS_PREFIX}HOST"
ALL_INTERFACES: Final = "0.0.0.0"  # noqa: S104 - other pods connect to it
STRATEGIES: Final = (
    "round_robin",  # each in turn
    "least_loaded",  # the fewest requests; ties by round robin
    "cache_aware",  # a prompt prefix goes to the same endpoint, for its KV cache, unless that is overloaded
    "prefill_decode",  # least_loaded, among the decoders and separately among the prefill engines
)
BOOTSTRAP_PORT: Final = 8998  # SGLang's default
PORTS: Final = {"BOOTSTRAP_PORT": BOOTSTRAP_PORT, "ENGINE_PORT": HTTP_PORT, "DECODER_PORT": HTTP_PORT}
PROMPT_PREFIX_BYTES: Final = 256  # that identify a conversation
PROMPT_SEARCH_BYTES: Final = 4096  # of the body
OVERLOADED: Final = 1.5  # times the average

# Start of the prompt in the engines' APIs; in a chat that is the system prompt, which many requests share.
_PROMPT: Final = re.compile(rb'"(?:prompt|content|text_input|input|text)"\s*:\s*')

Loads = Mapping[str, int]  # requests at each endpoint, by its name


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
    access_file: str = ""  # access rules of the service; empty: none is enforced here
    proxies: Networks = ()  # trusted for X-Forwarded-For
    protocol: str = "llm-d"  # of prefill and decode: a name of disaggregation.PROTOCOLS
    bootstrap_port: int = BOOTSTRAP_PORT  # of SGLang's prefill engines
    engine_port: int = HTTP_PORT
    decoder_port: int = HTTP_PORT

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
    protocol = environ.get(f"{ENV_PREFIX}PROTOCOL") or "llm-d"
    if protocol not in PROTOCOLS:
        raise UsageError(f"{ENV_PREFIX}PROTOCOL = {protocol}, must be one of {', '.join(PROTOCOLS)}")
    folder = environ.get(ENV_ENDPOINTS_DIR)
    return RouterSettings(
        engine, environ.get(f"{ENV_PREFIX}NAMESPACE") or "default", decoder, strategy,
        number(environ, f"{ENV_PREFIX}HEALTH_CHECK_INTERVAL_S", 10.0, 3600, 0.1),
        Path(folder) if folder else None, environ.get(HOST) or ALL_INTERFACES,
        int(number(environ, PORT, HTTP_PORT, 65535)), environ.get(ENV_ACCESS_FILE, ""),
        parse_proxies(environ.get(ENV_TRUSTED_PROXIES, ""), ENV_TRUSTED_PROXIES),
        protocol, *(int(number(environ, f"{ENV_PREFIX}{name}", port, 65535, 1)) for name, port in PORTS.items()),
    )  # fmt: skip


class EndpointPicker:
    """Applies one strategy; keeps the position of the round robin."""

    def __init__(self, strategy: str) -> None:
        self.reads_body = strategy == "cache_aware"
        self._turn = 0
        self._choose: Callable[[Loads, bytes], str] = {
            "round_robin": self._round_robin,
            "cache_aware": self._cache_aware,
        }.get(strategy, self._least_loaded)

    def pick(self, loads: Loads, beginning: bytes = b"") -> str:
        """Return one of `loads`, which must not be empty; `beginning` is the buffered part of the body."""
        return self._choose(loads, beginning)

    def _round_robin(self, loads: Loads, beginning: bytes) -> str:
        names = sorted(loads)
        self._turn += 1
        return names[self._turn % len(names)]

    def _least_loaded(self, loads: Loads, beginning: bytes) -> str:
        fewest = min(loads.values())
        return self._round_robin({name: load for name, load in loads.items() if load == fewest}, beginning)

    def _cache_aware(self, loads: Loads, beginning: bytes) -> str:
        prefix = prompt_prefix(beginning)
        preferred_name = preferred(prefix, loads) if prefix else ""
        if not preferred_name or overloaded(loads[preferred_name], loads):
            return self._least_loaded(loads, beginning)
        return preferred_name


def prompt_prefix(beginning: bytes) -> bytes:
    """Return the first bytes of the prompt, or of the body if no prompt is recognized."""
    match = _PROMPT.search(beginning, 0, PROMPT_SEARCH_BYTES)
    start = match.end() if match else 0
    return beginning[start : start + PROMPT_PREFIX_BYTES]


def preferred(prefix: bytes, names: Loads) -> str:
    """Return an endpoint by rendezvous hashing: when one comes or goes, only its own share moves."""
    return max(names, key=lambda name: hashlib.blake2b(prefix, key=name.encode()[:64], digest_size=8).digest())


def overloaded(load: int, loads: Loads) -> bool:
    """Whether the load is far above the average; one is added to both, so that a few requests are no overload."""
    return load + 1 > OVERLOADED * (sum(loads.values()) / len(loads) + 1)
