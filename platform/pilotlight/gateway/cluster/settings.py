"""Settings of the gateway in a pod, from environment variables of Kubernetes and the chart."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.wire.client_address import Networks

PREFIX: Final = "PILOTLIGHT_GATEWAY_"
CREDENTIALS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
ALL_INTERFACES: Final = "0.0.0.0"  # noqa: S104 - other pods connect to it


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`service` is the Service for clients, `peers` the headless Service for peer discovery."""

    namespace: str
    pod: str
    address: str  # of this pod
    api: str  # https://10.96.0.1:443
    credentials: Path = Path(CREDENTIALS)  # token and ca.crt
    service: str = "pilotlight-gateway"
    peers: str = "pilotlight-gateway-peers"
    host: str = ALL_INTERFACES
    http_port: int = 8090
    status_port: int = 8092
    peer_port: int = 8093
    scaler_port: int = 9090
    leave_s: float = 5.0  # minimum time of accepting connections after SIGTERM
    memory: int = 2 << 30  # memory limit of the pod, bytes
    drain_s: float = 590.0  # maximum time from SIGTERM to the exit
    proxies: Networks = ()  # trusted for X-Forwarded-For


def read(environ: Mapping[str, str]) -> ClusterSettings:
    """Return the settings. Raises UsageError, which names the variable."""
    missing = [name for name in ("POD_NAMESPACE", "POD_NAME", "POD_IP") if not environ.get(name)]
    if missing:
        raise UsageError(f"{missing[0]} is not set, must come from the pod's own fields (valueFrom.fieldRef)")

    def port(name: str, default: int) -> int:
        return int(number(environ, f"{PREFIX}{name}", default, 65535))

    return ClusterSettings(
        environ["POD_NAMESPACE"], environ["POD_NAME"], environ["POD_IP"], _api(environ),
        credentials=Path(environ.get(f"{PREFIX}CREDENTIALS") or CREDENTIALS),
        service=environ.get(f"{PREFIX}SERVICE") or "pilotlight-gateway",
        peers=environ.get(f"{PREFIX}PEERS") or "pilotlight-gateway-peers",
        host=environ.get(f"{PREFIX}HOST") or ALL_INTERFACES,
        http_port=port("HTTP_PORT", 8090), status_port=port("STATUS_PORT", 8092),
        peer_port=port("PEER_PORT", 8093), scaler_port=port("SCALER_PORT", 9090),
        proxies=parse_proxies(environ.get(f"{PREFIX}TRUSTED_PROXIES", ""), f"{PREFIX}TRUSTED_PROXIES"),
        memory=int(number(environ, f"{PREFIX}MEMORY_MIB", 2048, 1 << 30)) << 20,
        leave_s=number(environ, f"{PREFIX}LEAVE_S", 5.0, 600),
        drain_s=number(environ, f"{PREFIX}DRAIN_S", 590.0, 86400),
    )  # fmt: skip


def parse_proxies(written: str, name: str) -> Networks:
    """Parse `10.244.0.0/16, fd00::/8`. Raises UsageError, which names the setting `name`."""
    networks = []
    for part in filter(None, (part.strip() for part in written.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise UsageError(f"{name} = {part}, must be networks such as 10.244.0.0/16: {error}") from error
    return tuple(networks)


def _api(environ: Mapping[str, str]) -> str:
    """Return the URL of the API server: of the cluster, or PILOTLIGHT_GATEWAY_API, such as `kubectl proxy`."""
    if written := environ.get(f"{PREFIX}API"):
        return written.rstrip("/")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UsageError(f"KUBERNETES_SERVICE_HOST is not set: run this in a pod, or set {PREFIX}API")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def number(environ: Mapping[str, str], name: str, default: float, most: float, least: float = 0.0) -> float:
    """Return a setting that is a number. Raises UsageError, which names the variable."""
    written = environ.get(name) or str(default)
    try:
        value = float(written)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UsageError(f"{name} = {written}, must be a number from {least:g} to {most:g}")
    return value
