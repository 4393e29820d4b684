"""The bed's network: one bridge inside this machine, with no way out of it.

What the kernel must be told for it is noted in the state directory, and taken back at the end.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster.bed.places import BRIDGE, NODE_IP, POD_CIDR, SERVICE_CIDR, BedError, Places

SETTINGS: Final = {
    "net/ipv4/ip_forward": "1",
    # Replies between two pods of the bridge must pass the translation of service addresses on their way back.
    "net/bridge/bridge-nf-call-iptables": "1",
}
KERNEL: Final = Path("/proc/sys")


def make_bridge(places: Places) -> None:
    if not _bridge_exists():
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "address", "replace", f"{NODE_IP}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    _run("ip", "route", "replace", SERVICE_CIDR, "dev", BRIDGE)  # gives the host a source address for services
    if not (KERNEL / "net/bridge").exists():
        _run("modprobe", "br_netfilter")
    before = places.run / "kernel.json"
    if not before.exists():
        before.write_text(json.dumps({name: (KERNEL / name).read_text().strip() for name in SETTINGS}))
    _set(SETTINGS)


def remove_bridge(places: Places) -> None:
    if _bridge_exists():
        _run("ip", "link", "delete", BRIDGE)
    before = places.run / "kernel.json"
    if before.exists():
        _set(json.loads(before.read_text()))


def _bridge_exists() -> bool:
    return subprocess.run(["ip", "link", "show", BRIDGE], capture_output=True, check=False).returncode == 0


def _set(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if (KERNEL / name).read_text().strip() != value:
            (KERNEL / name).write_text(value)


def remove_proxy_rules() -> None:
    """kube-proxy leaves its tables behind, and one that inherits another's may leave chains empty."""
    for family in ("ip", "ip6"):
        subprocess.run(["nft", "delete", "table", family, "kube-proxy"], capture_output=True, check=False)


def cni_configuration(places: Places) -> str:
    ipam = {
        "type": "host-local", "dataDir": str(places.run / "ipam"), "ranges": [[{"subnet": POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }  # fmt: skip
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "bed", "plugins": [bridge, {"type": "loopback"}]}, indent=1)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)} failed: {done.stderr.strip()}")
