"""Settings of a router component, from the variables that the plan writes (`plan/router.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pilotlight import contract
from pilotlight.contract import (
    ENV_ROUTER_PREFIX,
    ENV_SETTINGS_PREFIX,
    HTTP_PORT,
    OLD_ROUTER_STRATEGIES,
    ROUTER_STRATEGIES,
)
from pilotlight.errors import UsageError
from pilotlight.gateway.cluster.settings import number, parse_proxies
from pilotlight.gateway.engine_router.disaggregation import PROTOCOLS
from pilotlight.gateway.engine_router.graph import Graph, read_graph
from pilotlight.wire.client_address import Networks

PORT: Final = f"{ENV_SETTINGS_PREFIX}HTTP_PORT"
HOST: Final = f"{ENV_SETTINGS_PREFIX}HOST"
ALL_INTERFACES: Final = "0.0.0.0"  # noqa: S104 - other pods connect to it
BOOTSTRAP_PORT: Final = 8998  # SGLang's default
PORTS: Final = {"BOOTSTRAP_PORT": BOOTSTRAP_PORT, "ENGINE_PORT": HTTP_PORT, "DECODER_PORT": HTTP_PORT}


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
    graph: Graph = field(default_factory=dict)  # of an InferenceGraph, in place of engines
    timeout_s: float = 300.0  # of a request to the graph, all steps together
    step_timeout_s: float = 0.0  # of one step; 0: none of its own
    gateway_url: str = ""  # of one machine, through which services are called; empty: by the cluster's DNS

    @property
    def disaggregated(self) -> bool:
        return self.strategy == "prefill_decode"


def read(environ: Mapping[str, str]) -> RouterSettings:
    """Return the settings. Raises UsageError, which names the variable."""
    text = environ.get(f"{ENV_ROUTER_PREFIX}GRAPH")
    try:
        graph = read_graph(text) if text else {}
    except ValueError as error:
        raise UsageError(f"{ENV_ROUTER_PREFIX}GRAPH must be the nodes of an InferenceGraph as JSON: {error}") from None
    engine = environ.get(f"{ENV_ROUTER_PREFIX}ENGINE") or (environ.get(contract.ENV_SERVICE, "graph") if graph else "")
    strategy = environ.get(f"{ENV_ROUTER_PREFIX}STRATEGY") or "least_loaded"
    strategy = OLD_ROUTER_STRATEGIES.get(strategy, strategy)
    decoder = environ.get(f"{ENV_ROUTER_PREFIX}DECODER", "")
    if not engine:
        raise UsageError(f"{ENV_ROUTER_PREFIX}ENGINE is not set, must name the workload that requests go to")
    if strategy not in ROUTER_STRATEGIES:
        raise UsageError(f"{ENV_ROUTER_PREFIX}STRATEGY = {strategy}, must be one of {', '.join(ROUTER_STRATEGIES)}")
    if strategy == "prefill_decode" and not decoder:
        raise UsageError(
            f"{ENV_ROUTER_PREFIX}DECODER is not set, must name the decoders that prefill_decode sends requests to"
        )
    protocol = environ.get(f"{ENV_ROUTER_PREFIX}PROTOCOL") or "llm-d"
    if protocol not in PROTOCOLS:
        raise UsageError(f"{ENV_ROUTER_PREFIX}PROTOCOL = {protocol}, must be one of {', '.join(PROTOCOLS)}")
    folder = environ.get(contract.ENV_ENDPOINTS_DIR)
    ports = (int(number(environ, f"{ENV_ROUTER_PREFIX}{name}", port, 65535, 1)) for name, port in PORTS.items())
    bootstrap_port, engine_port, decoder_port = ports
    return RouterSettings(
        engine, environ.get(f"{ENV_ROUTER_PREFIX}NAMESPACE") or "default", decoder, strategy,
        number(environ, f"{ENV_ROUTER_PREFIX}HEALTH_CHECK_INTERVAL_S", 10.0, 3600, 0.1),
        Path(folder) if folder else None, environ.get(HOST) or ALL_INTERFACES,
        int(number(environ, PORT, HTTP_PORT, 65535)), environ.get(contract.ENV_ACCESS_FILE, ""),
        parse_proxies(environ.get(contract.ENV_TRUSTED_PROXIES, ""), contract.ENV_TRUSTED_PROXIES),
        protocol, bootstrap_port, engine_port, decoder_port, graph,
        number(environ, f"{ENV_ROUTER_PREFIX}TIMEOUT_S", 300.0, 3600, 0.1),
        number(environ, f"{ENV_ROUTER_PREFIX}STEP_TIMEOUT_S", 0.0, 3600), environ.get(contract.ENV_GATEWAY_URL, ""),
    )  # fmt: skip
