"""Kubernetes on one node: the command line and the configuration of each of its daemons, in starting order.

Test settings differ from a production cluster's in three points: no leader election, a quick autoscaler loop, and
images are never collected, since there is no registry to pull them from again.
"""

import json
from pathlib import Path
from typing import Any

from tests.cluster.bed.cgroups import group_name
from tests.cluster.bed.images import PAUSE
from tests.cluster.bed.network import cni_configuration
from tests.cluster.bed.places import (  # fmt: skip
    DNS_IP,
    ETCD_PEER_URL,
    ETCD_URL,
    NODE,
    NODE_IP,
    POD_CIDR,
    SERVICE_CIDR,
    Places,
)

Command = list[str | Path]


def commands(places: Places) -> dict[str, Command]:
    return {
        "containerd": ["containerd", "--config", places.etc / "containerd.toml"],
        "etcd": _etcd(places),
        "kube-apiserver": _api_server(places),
        "kube-controller-manager": _controller_manager(places),
        "kube-scheduler": [
            places.bin / "kube-scheduler", f"--kubeconfig={places.etc}/scheduler.kubeconfig", "--leader-elect=false",
        ],
        "kube-proxy": [places.bin / "kube-proxy", f"--config={places.etc}/proxy.json"],
        "kubelet": [
            places.bin / "kubelet", f"--config={places.etc}/kubelet.json",
            f"--kubeconfig={places.etc}/kubelet.kubeconfig", f"--root-dir={places.state}/kubelet",
            f"--cert-dir={places.state}/kubelet/pki", f"--hostname-override={NODE}", f"--node-ip={NODE_IP}",
        ],
    }  # fmt: skip


def write_configuration(places: Places) -> None:
    put(places.etc / "cni" / "10-bridge.conflist", cni_configuration(places))
    put(places.etc / "containerd.toml", _containerd(places))
    put(places.etc / "proxy.json", json.dumps(_proxy(places), indent=1))
    put(places.etc / "kubelet.json", json.dumps(_kubelet(places), indent=1))


def put(path: Path, text: str) -> None:
    """Writes only what changes a file: kube-proxy exits when its own is rewritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _etcd(places: Places) -> Command:
    return [
        places.bin / "etcd", f"--data-dir={places.state}/etcd", "--unsafe-no-fsync", "--log-level=warn",
        f"--listen-client-urls={ETCD_URL}", f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={ETCD_PEER_URL}", f"--initial-advertise-peer-urls={ETCD_PEER_URL}",
        f"--initial-cluster=default={ETCD_PEER_URL}",
    ]  # fmt: skip


def _api_server(places: Places) -> Command:
    pki = places.pki
    return [
        places.bin / "kube-apiserver", f"--etcd-servers={ETCD_URL}", f"--bind-address={NODE_IP}",
        f"--advertise-address={NODE_IP}", "--secure-port=6443", f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allow-privileged", "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction", f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/admin.crt", f"--kubelet-client-key={pki}/admin.key",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--requestheader-client-ca-file={pki}/front-ca.crt", "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-", "--enable-aggregator-routing",
        f"--proxy-client-cert-file={pki}/front.crt", f"--proxy-client-key-file={pki}/front.key",
        # For tests whose pods ask for more than this machine has.
        "--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    ]  # fmt: skip


def _controller_manager(places: Places) -> Command:
    pki = places.pki
    return [
        places.bin / "kube-controller-manager", f"--kubeconfig={places.etc}/controller-manager.kubeconfig",
        "--leader-elect=false", "--use-service-account-credentials", f"--cluster-cidr={POD_CIDR}",
        f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]  # fmt: skip


def _proxy(places: Places) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clusterCIDR": POD_CIDR, "hostnameOverride": NODE, "bindAddress": NODE_IP,
        "clientConnection": {"kubeconfig": f"{places.etc}/proxy.kubeconfig"}, "conntrack": {"maxPerCore": 0},
    }  # fmt: skip


def _kubelet(places: Places) -> dict[str, Any]:
    x509 = {"clientCAFile": f"{places.pki}/ca.crt"}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{group_name(places)}", "failSwapOn": False,
        "clusterDNS": [DNS_IP], "clusterDomain": "cluster.local", "resolvConf": "/dev/null",
        "containerRuntimeEndpoint": f"unix://{places.socket}",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": x509},
        "authorization": {"mode": "Webhook"}, "address": NODE_IP, "readOnlyPort": 0, "healthzPort": 0,
        "serializeImagePulls": False, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "makeIPTablesUtilChains": False, "maxPods": 200,
    }  # fmt: skip


def _containerd(places: Places) -> str:
    """`restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc cannot lower a score, and fails the container."""
    return f"""version = 2
root = "{places.state}/containerd/root"
state = "{places.state}/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{places.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{places.etc}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
