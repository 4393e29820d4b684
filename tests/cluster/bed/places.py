"""Where the bed keeps things and which addresses it takes: every other module of it reads them here.

What was built lies in the cache and outlives everything; what a running cluster writes lies below one state directory.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]

BRIDGE: Final = "pilot0"
NODE: Final = "node"
NODE_IP: Final = "10.244.0.1"  # the bridge's own address: node, API server and gateway of the pods
POD_CIDR: Final = "10.244.0.0/24"
SERVICE_CIDR: Final = "10.96.0.0/16"
API_IP: Final = "10.96.0.1"
DNS_IP: Final = "10.96.0.10"
INGRESS_IP: Final = "10.96.0.80"  # of Knative's ingress
GATEWAY_IP: Final = "10.96.0.81"  # of the Gateway API's
DOMAIN: Final = "cluster.test"  # a Knative service is NAME.NAMESPACE.cluster.test
ETCD_URL: Final = "http://127.0.0.1:12379"
ETCD_PEER_URL: Final = "http://127.0.0.1:12380"


class BedError(Exception):
    """One sentence for the person at the terminal: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Places:
    state: Path
    cache: Path

    @property
    def bin(self) -> Path:
        return self.state / "bin"

    @property
    def run(self) -> Path:
        """What must not survive the cluster: pids, sockets, leases of addresses."""
        return self.state / "run"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def images(self) -> Path:
        """One file per imported image, which holds the key of its content."""
        return self.state / "images"

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def kubectl(self) -> Path:
        return self.bin / "kubectl"


def places(environment: Mapping[str, str] = os.environ) -> Places:
    home = Path(environment.get("HOME") or "/root")
    state = Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state") / "pilotlight" / "cluster"
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "pilotlight" / "cluster"
    return Places(
        Path(environment.get("PILOTLIGHT_CLUSTER_STATE") or state),
        Path(environment.get("PILOTLIGHT_CLUSTER_CACHE") or cache),
    )
